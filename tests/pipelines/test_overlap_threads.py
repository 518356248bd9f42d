"""Decoding in the background: who reads and decodes when, and how it ends."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import time
from dataclasses import replace
from itertools import count

import pytest
import torch

from npad import MBR, NPAD, Beam, Greedy, Noise, Sampling
from npad.pipelines import pipeline
from npad.pipelines.overlap import Background, Inline, ReadAhead, one_ahead, runner_for
from overlapping import TOY, names, spied
from overlapping import no_thread_is_left as no_thread_is_left
from overlapping import overlap as overlap


@pytest.mark.parametrize("size", range(4))
def test_one_ahead_yields_all_in_order(size):
    made = []
    items = one_ahead(made.append(i) or i for i in range(size))
    for i in range(size):
        assert next(items) == i
        assert len(made) == min(i + 2, size)
    assert list(items) == []


@pytest.mark.parametrize(
    ("runner", "wrapped", "ahead"),
    [(Background, iter, 0), (Background, ReadAhead, 10), (Inline, ReadAhead, 0)],
)
def test_at_most_one_window_is_read_ahead_and_only_where_it_may(
    runner, wrapped, ahead, monkeypatch
):
    monkeypatch.setattr(pipeline, "runner_for", lambda model, ahead: runner())
    read, decoded = [], []
    endless = (read.append(i) or "danke" for i in count())
    stream = spied(TOY, decoded.append).stream(wrapped(endless), Greedy(), window=10)
    assert read == []
    for done in range(1, 35):
        next(stream)
        assert len(read) == -(-done // 10) * 10 + ahead
        assert sum(decoded) <= len(read)
    stream.close()
    assert len(read) == 40 + ahead


@pytest.mark.usefixtures("overlap")
def test_only_decoding_leaves_the_callers_thread():
    threads = {"read": set(), "encode": set(), "detokenise": set(), "decode": set()}

    def note(name, value):
        threads[name].add(threading.current_thread())
        return value

    translator = replace(
        spied(TOY, lambda sentences: note("decode", None)),
        encode=lambda texts: note("encode", TOY.encode(texts)),
        detokenise=lambda tokens: note("detokenise", TOY.detokenise(tokens)),
    )
    list(translator.stream(ReadAhead(note("read", "danke") for _ in range(9)), window=2))
    here = {threading.current_thread()}
    assert (threads["read"], threads["encode"], threads["detokenise"]) == (here, here, here)
    assert not threads["decode"] & here


@pytest.mark.usefixtures("overlap")
def test_a_selector_that_detokenises_decodes_in_the_callers_thread():
    threads = set()
    translator = spied(TOY, lambda sentences: threads.add(threading.current_thread()))
    decoder = NPAD(Sampling(3), chains=3, noise=Noise(0.3), selector=MBR())
    list(translator.stream(ReadAhead(["danke"] * 5), decoder, window=2))
    assert threads == {threading.current_thread()}


@pytest.mark.parametrize("end", ["close", "collect", "break"])
@pytest.mark.usefixtures("overlap")
def test_a_stream_that_is_abandoned_stops_after_the_current_batch(end):
    batches, begun, go_on = [], threading.Event(), threading.Event()

    def start(sentences):
        batches.append(sentences)
        if len(batches) == 4:  # the first of the second window
            begun.set()
            assert go_on.wait(10)

    stream = spied(TOY, start).stream(ReadAhead(["danke"] * 30), Greedy(), max_rows=1, window=3)
    if end == "break":
        for _ in stream:
            break
    else:
        next(stream)
    assert begun.wait(10)
    timer = threading.Timer(0.05, go_on.set)
    timer.start()
    if end == "close":
        stream.close()
    del stream
    gc.collect()
    assert "npad decoding" not in names()
    assert len(batches) == 4
    timer.join()


@pytest.mark.usefixtures("overlap")
def test_between_windows_that_are_not_read_ahead_no_thread_waits():
    stream = TOY.stream(iter(["danke"] * 4), Greedy(), window=2)
    next(stream)
    deadline = time.monotonic() + 10
    while "npad decoding" in names():
        assert time.monotonic() < deadline
        time.sleep(0.001)
    assert len(list(stream)) == 3


ABANDON = """
import npad
from npad.pipelines import pipeline
from npad.pipelines.overlap import Background, ReadAhead

pipeline.runner_for = lambda model, ahead: Background()
stream = npad.load("toy").stream(ReadAhead(["danke"] * 9), npad.Greedy(), window=2)
print(next(stream).text)
"""


def test_a_program_may_end_in_the_middle_of_a_stream():
    done = subprocess.run(
        [sys.executable, "-c", ABANDON], capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "thanks\n", "")


@pytest.mark.usefixtures("overlap")
def test_streams_may_be_read_alternately():
    texts = ["danke", "na ja", "das ist mir wurst"] * 5
    expected = [output.text for output in TOY.translate(texts, Beam(2))]
    streams = [TOY.stream(ReadAhead(texts), Beam(2), window=window) for window in (2, 4)]
    for pair in zip(expected, *streams, strict=True):
        assert len({pair[0], pair[1].text, pair[2].text}) == 1


def test_a_background_runner_continues_after_an_error_and_a_pause():
    runner = Background()
    fails, works = runner.submit(lambda: 1 / 0), runner.submit(lambda: 2)
    with pytest.raises(ZeroDivisionError):
        fails()
    assert works() == 2
    runner.close()
    assert runner.submit(lambda: 3)() == 3
    runner.close()


def test_a_task_without_company_runs_in_the_thread_that_asks():
    runner = Background(ahead=False)
    assert runner.submit(threading.current_thread)() is threading.current_thread()
    with pytest.raises(ZeroDivisionError):
        runner.submit(lambda: 1 / 0)()
    several = [runner.submit(threading.current_thread) for _ in range(3)]
    assert {result().name for result in several} == {"npad decoding"}
    runner.close()


PAUSE = 0.02  # seconds to encode, decode or write three texts


@pytest.mark.parametrize(
    ("window", "max_rows", "share"),
    [(3, 1024, 0.85), (30, 3, 0.75)],
    ids=["windows", "batches of a window"],
)
def test_stages_overlap(window, max_rows, share, monkeypatch):
    """Encoding and writing take turns in one thread, beside decoding."""
    translator = replace(
        spied(TOY, lambda sentences: time.sleep(PAUSE)),
        encode=lambda texts: time.sleep(PAUSE) or TOY.encode(texts),
    )

    def seconds(runner):
        monkeypatch.setattr(pipeline, "runner_for", lambda model, ahead: runner())
        start = time.perf_counter()
        stream = translator.stream(ReadAhead(["danke"] * 30), Greedy(), 4, max_rows, window)
        for number, _ in enumerate(stream):
            if number % window == 0:
                time.sleep(PAUSE)
        return time.perf_counter() - start

    assert min(seconds(Background) for _ in range(3)) < share * seconds(Inline)


class Placed:
    """Something on a device."""

    def __init__(self, device):
        self.device = torch.device(device)


def test_only_a_gpu_decodes_in_the_background_and_not_if_it_autocasts(monkeypatch):
    assert isinstance(runner_for(Placed("cuda")), Background)
    assert isinstance(runner_for(Placed("cpu")), Inline)
    assert isinstance(runner_for(TOY.model), Inline)
    # autocasting belongs to a thread
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda device: device == "cuda")
    assert isinstance(runner_for(Placed("cuda")), Inline)
