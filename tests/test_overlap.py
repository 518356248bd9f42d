"""Decoding in the background: the same results, errors and reading as in one thread."""

from __future__ import annotations

import functools
import gc
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import replace
from itertools import count

import pytest
import torch

import npad
from cases import Small
from npad import MBR, NPAD, Beam, Greedy, InvalidInput, Noise, Sampling
from npad.cli import line_stream
from npad.cli import translate as command
from npad.cli.main import main
from npad.pipelines import translation
from npad.pipelines.overlap import Background, Inline, ReadAhead, one_ahead, runner_for
from runs import lines
from test_translate import assert_alike, decoders, sentences, untrained

TOY = npad.load("toy")
SOURCES = [iter, ReadAhead]
sources = pytest.mark.parametrize("source", SOURCES, ids=["iterator", "read ahead"])


@pytest.fixture
def overlap(monkeypatch):
    """Decode in the background, as on a GPU."""
    monkeypatch.setattr(translation, "runner_for", lambda model: Background())


@pytest.fixture(autouse=True)
def no_thread_is_left():
    before = set(threading.enumerate())
    yield
    assert set(threading.enumerate()) <= before


class Spied:
    """A model that calls `spy` with the number of sentences whenever it starts."""

    def __init__(self, model, spy):
        self.model, self.spy = model, spy
        self.special, self.sites = model.special, model.sites
        self.step, self.select = model.step, model.select

    def start(self, source):
        self.spy(len(source))
        return self.model.start(source)


def spied(translator, spy):
    return replace(translator, model=Spied(translator.model, spy))


def texts_until(n, error):
    """Yield n texts, then raise."""
    for i in range(n):
        yield f"text {i}"
    raise error


def outcome(stream):
    """What a stream yields, and the error that ends it, if any."""
    found, error = [], None
    try:
        for each in stream:
            found.append(each)
    except Exception as raised:
        error = (type(raised), str(raised))
    return found, error


# The same results


@functools.cache
def in_one_thread(decoder, texts, window):
    """What one thread translates, for both sources."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(translation, "runner_for", lambda model: Inline())
        stream = untrained().stream(sentences(texts), decoder, 8, max_rows=40, window=window)
        return list(stream)


@decoders
@sources
@pytest.mark.parametrize(("texts", "window"), [(130, None), (30, 1), (60, 7), (130, 60), (90, 500)])
def test_translations_are_those_of_one_thread(decoder, source, texts, window, overlap):
    expected = in_one_thread(decoder, texts, window)
    texts, translator = sentences(texts), untrained()
    found = translator.stream(source(texts), decoder, 8, max_rows=40, window=window)
    assert_alike(found, expected)


@pytest.mark.usefixtures("overlap")
def test_a_list_is_translated_in_order():
    texts, translator = sentences(60), untrained()
    expected = [translator.translate([text], Greedy(), 8)[0] for text in texts]
    assert_alike(translator.translate(texts, Greedy(), 8, max_rows=16), expected)


@pytest.mark.usefixtures("overlap")
def test_halves_are_decoded_where_memory_is_short():
    texts, translator = sentences(100), untrained()
    expected = translator.translate(texts, Greedy(), 8)
    small = replace(translator, model=Small(translator.model, 13))
    with pytest.warns(npad.MemoryWarning):
        found = list(small.stream(ReadAhead(texts), Greedy(), 8, window=40))
    assert [each.text for each in found] == [each.text for each in expected]


@pytest.mark.usefixtures("overlap")
def test_model_calls_are_counted_where_the_stream_is_read():
    with npad.count_calls() as calls:
        list(TOY.stream(ReadAhead(["danke"] * 5), Greedy(), window=2))
    with pytest.MonkeyPatch.context() as patch, npad.count_calls() as expected:
        patch.setattr(translation, "runner_for", lambda model: Inline())
        list(TOY.stream(["danke"] * 5, Greedy(), window=2))
    assert calls == expected
    assert calls.search > 0


# Errors keep their places

FAULTS = {
    "reading": lambda t: (t, texts_until(25, OSError("the disk is gone"))),
    "no text": lambda t: (t, [f"text {i}" if i != 25 else 25 for i in range(40)]),
    "too long": lambda t: (replace(t, longest=9), ["text"] * 24 + ["x" * 12, "x" * 11] + ["a"] * 9),
    "encoding": lambda t: (failing_encode(t), ["text"] * 25 + ["fault"] + ["text"] * 20),
    "decoding": lambda t: (failing_model(t, 3), ["text"] * 45),
    "detokenising": lambda t: (failing_detokenise(t, 25), ["text"] * 45),
}


def failing_encode(translator):
    def encode(texts):
        if "fault" in texts:
            raise ValueError("no such token")
        return translator.encode(texts)

    return replace(translator, encode=encode)


def failing_model(translator, window):
    calls = count(1)

    def spy(sentences):
        if next(calls) == window:
            raise ArithmeticError("no such logarithm")

    return spied(translator, spy)


def failing_detokenise(translator, good):
    calls = count()
    return replace(translator, detokenise=lambda tokens: "text" if next(calls) < good else None)


@sources
@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_an_error_comes_after_the_windows_before_it(fault, source, overlap):
    translator, texts = fault(untrained())
    found, error = outcome(translator.stream(source(texts), Greedy(), 4, window=10))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(translation, "runner_for", lambda model: Inline())
        translator, texts = fault(untrained())
        expected = outcome(translator.stream(texts, Greedy(), 4, window=10))
    assert error == expected[1] is not None
    assert len(found) == 20
    assert_alike(found, expected[0])


@sources
def test_a_text_that_is_too_long_is_skipped_at_its_place(source, overlap):
    translator, texts = replace(untrained(), longest=9), sentences(60)
    found = translator.stream_or_skip(source(texts), Greedy(), 4, window=10)
    for text, translated in zip(texts, found, strict=True):
        assert isinstance(translated, npad.Translation) == (len(text) <= 9)


@pytest.mark.usefixtures("overlap")
def test_an_interrupt_comes_at_once():
    """Ctrl-C while a window is read ahead."""
    stream = TOY.stream(ReadAhead(texts_until(15, KeyboardInterrupt())), Greedy(), window=10)
    with pytest.raises(KeyboardInterrupt):
        next(stream)


@pytest.mark.parametrize("size", range(4))
def test_one_ahead_yields_all_in_order(size):
    made = []
    items = one_ahead(made.append(i) or i for i in range(size))
    for i in range(size):
        assert next(items) == i
        assert len(made) == min(i + 2, size)
    assert list(items) == []


# What is read, and by whom


@pytest.mark.usefixtures("overlap")
def test_a_producer_is_not_waited_for_before_a_window_is_yielded():
    read = []
    endless = (read.append(i) or "danke" for i in count())
    stream = TOY.stream(endless, Greedy(), window=10)
    assert read == []
    for done in range(1, 35):
        next(stream)
        assert len(read) == -(-done // 10) * 10
    stream.close()


@pytest.mark.usefixtures("overlap")
def test_at_most_one_window_is_read_ahead():
    read, decoded = [], []
    translator = spied(TOY, decoded.append)
    endless = (read.append(i) or "danke" for i in count())
    stream = translator.stream(ReadAhead(endless), Greedy(), window=10)
    for done in range(1, 35):
        next(stream)
        assert len(read) == -(-done // 10) * 10 + 10
        assert sum(decoded) <= len(read)
    stream.close()
    assert len(read) == 50


def test_in_one_thread_nothing_is_read_ahead():
    read = []
    stream = TOY.stream(ReadAhead(read.append(i) or "danke" for i in count()), Greedy(), window=10)
    next(stream)
    assert len(read) == 10


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


# Ends


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


def names():
    return [thread.name for thread in threading.enumerate()]


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
from npad.pipelines import translation
from npad.pipelines.overlap import Background, ReadAhead

translation.runner_for = lambda model: Background()
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
    expected = [each.text for each in TOY.translate(texts, Beam(2))]
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


# Time

PAUSE = 0.02  # seconds to encode, decode or write a window of three texts
WINDOWS = 8


def timed(source, runner, monkeypatch):
    """Seconds to read, encode, decode and write windows, each stage asleep for PAUSE."""
    monkeypatch.setattr(translation, "runner_for", lambda model: runner())
    translator = replace(
        spied(TOY, lambda sentences: time.sleep(PAUSE)),
        encode=lambda texts: time.sleep(PAUSE) or TOY.encode(texts),
    )
    start = time.perf_counter()
    stream = translator.stream(source(["danke"] * 3 * WINDOWS), Greedy(), 4, window=3)
    for i, _ in enumerate(stream):
        if i % 3 == 0:
            time.sleep(PAUSE)  # writing
    return time.perf_counter() - start


def test_stages_overlap(monkeypatch):
    in_turn = timed(ReadAhead, Inline, monkeypatch)
    overlapped = min(timed(ReadAhead, Background, monkeypatch) for _ in range(3))
    assert in_turn > 3 * PAUSE * WINDOWS
    # encoding and writing take turns in one thread, beside decoding
    assert overlapped < 0.85 * in_turn


def test_batches_of_a_window_are_encoded_while_earlier_ones_are_decoded(monkeypatch):
    def encode(texts):
        time.sleep(PAUSE)
        return TOY.encode(texts)

    translator = replace(spied(TOY, lambda sentences: time.sleep(PAUSE)), encode=encode)
    seconds = {}
    for runner in (Inline, Background):
        monkeypatch.setattr(translation, "runner_for", lambda model, runner=runner: runner())
        start = time.perf_counter()
        translator.translate(["danke"] * 10, Greedy(), 4, max_rows=1)
        seconds[runner] = time.perf_counter() - start
    assert seconds[Background] < 0.75 * seconds[Inline]


# Where


class Placed:
    """Something on a device."""

    def __init__(self, device):
        self.device = torch.device(device)


def test_a_gpu_decodes_in_the_background_and_a_cpu_does_not():
    assert isinstance(runner_for(Placed("cuda")), Background)
    assert isinstance(runner_for(Placed("cpu")), Inline)
    assert isinstance(runner_for(TOY.model), Inline)


def test_autocasting_which_belongs_to_a_thread_stays_in_it(monkeypatch):
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda device: device == "cuda")
    assert isinstance(runner_for(Placed("cuda")), Inline)


# npad translate


def run(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["npad", "translate", "-m", "toy", *map(str, arguments)])
    with suppress(SystemExit):
        main()


@pytest.mark.usefixtures("overlap")
def test_the_command_writes_a_file_as_it_is_read(monkeypatch, tmp_path):
    (tmp_path / "in").write_text("danke\n\nna ja\n" * 7)
    monkeypatch.setattr(line_stream, "LINES_PER_UPDATE", 4)
    monkeypatch.setattr(line_stream, "LINES_PER_TRIM", 8)
    trims = []
    monkeypatch.setattr(line_stream, "return_free_memory", lambda: trims.append(True))
    run(monkeypatch, "-i", tmp_path / "in", "-o", tmp_path / "out", "--window", 5)
    assert lines(tmp_path / "out") == ["thanks", "", "well yes"] * 7
    assert len(trims) == 2  # at 8 and 16 of 21 lines, though more lines had been read


@pytest.mark.usefixtures("overlap")
def test_what_was_written_before_an_error_is_kept(monkeypatch, tmp_path, capsys):
    (tmp_path / "in").write_text("danke\n" * 7 + "hallo\n" + "danke\n" * 9)
    run(monkeypatch, "-i", tmp_path / "in", "-o", tmp_path / "out", "--window", 2)
    (part,) = tmp_path.glob("out.*.part")
    assert lines(part) == ["thanks"] * 6  # three windows of two
    assert "toy has no table for 'hallo'" in capsys.readouterr().err


@pytest.mark.usefixtures("overlap")
def test_a_writer_that_fails_leaves_no_thread(monkeypatch, tmp_path):
    def write(*arguments):
        raise InvalidInput("no more")

    monkeypatch.setattr(command, "as_text", write)
    (tmp_path / "in").write_text("danke\n" * 9)
    run(monkeypatch, "-i", tmp_path / "in", "-o", tmp_path / "out", "--window", 2)
    assert "npad decoding" not in names()
