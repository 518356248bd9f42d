"""Decoding in the background: the same results, errors and files as in one thread."""

from __future__ import annotations

import sys
from contextlib import suppress
from dataclasses import replace
from itertools import count

import pytest

import npad
from npad import Greedy, InvalidInput
from npad.cli import outputs
from npad.cli import translate as command
from npad.cli.main import main
from npad.pipelines import pipeline
from npad.pipelines.overlap import Inline, ReadAhead
from overlapping import TOY, assert_alike, names, sentences, spied, untrained
from overlapping import no_thread_is_left as no_thread_is_left
from overlapping import overlap as overlap
from runs import lines

sources = pytest.mark.parametrize("source", [iter, ReadAhead], ids=["iterator", "read ahead"])


def texts_until(n, error):
    """Yield n texts, then raise."""
    for i in range(n):
        yield f"text {i}"
    raise error


def outcome(stream):
    """What a stream yields, and the error that ends it, if any."""
    found, error = [], None
    try:
        for output in stream:
            found.append(output)
    except Exception as raised:
        error = (type(raised), str(raised))
    return found, error


@pytest.mark.usefixtures("overlap")
def test_model_calls_are_counted_where_the_stream_is_read():
    with npad.count_calls() as calls:
        list(TOY.stream(ReadAhead(["danke"] * 5), Greedy(), window=2))
    with pytest.MonkeyPatch.context() as patch, npad.count_calls() as expected:
        patch.setattr(pipeline, "runner_for", lambda model, ahead: Inline())
        list(TOY.stream(["danke"] * 5, Greedy(), window=2))
    assert calls == expected
    assert calls.search > 0


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
        patch.setattr(pipeline, "runner_for", lambda model, ahead: Inline())
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


def run(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["npad", "translate", "-m", "toy", *map(str, arguments)])
    with suppress(SystemExit):
        main()


@pytest.mark.usefixtures("overlap")
def test_the_command_writes_a_file_as_it_is_read(monkeypatch, tmp_path):
    (tmp_path / "in").write_text("danke\n\nna ja\n" * 7)
    monkeypatch.setattr(outputs, "OUTPUTS_PER_UPDATE", 4)
    monkeypatch.setattr(outputs, "OUTPUTS_PER_TRIM", 8)
    trims = []
    monkeypatch.setattr(outputs, "return_free_memory", lambda: trims.append(True))
    run(monkeypatch, "-i", tmp_path / "in", "-o", tmp_path / "out", "--window", 5)
    assert lines(tmp_path / "out") == ["thanks", "", "well yes"] * 7
    assert len(trims) == 2  # at 8 and 16 of 21 lines, though more lines had been read


@pytest.mark.usefixtures("overlap")
def test_lines_written_before_an_error_are_kept(monkeypatch, tmp_path, capsys):
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
