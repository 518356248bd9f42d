"""Texts are decoded and written window by window: what comes before an error, and is kept."""

from __future__ import annotations

import sys
from contextlib import suppress
from dataclasses import replace
from itertools import count

import pytest

from npad import Greedy
from npad.cli import outputs
from npad.cli.main import main
from pipeline_cases import spied, untrained
from runs import lines


def texts_until(n, error):
    """Yield n texts, then raise."""
    for i in range(n):
        yield f"text {i}"
    raise error


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


ERRORS = {
    "reading": "the disk is gone",
    "no text": "translate takes texts, not 25",
    "too long": "text 25 has 12 tokens",
    "encoding": "no such token",
    "decoding": "no such logarithm",
    "detokenising": "detokenise must return a text, not None",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_an_error_comes_after_the_windows_before_it(fault):
    translator, texts = FAULTS[fault](untrained())
    found: list = []
    with pytest.raises(Exception, match=ERRORS[fault]):
        found.extend(translator.stream(texts, Greedy(), 4, window=10))
    assert len(found) == 20


def run(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["npad", "translate", "-m", "toy", *map(str, arguments)])
    with suppress(SystemExit):
        main()


def test_the_command_writes_a_file_as_it_is_read(monkeypatch, tmp_path):
    (tmp_path / "in").write_text("danke\n\nna ja\n" * 7)
    monkeypatch.setattr(outputs, "OUTPUTS_PER_UPDATE", 4)
    monkeypatch.setattr(outputs, "OUTPUTS_PER_TRIM", 8)
    trims = []
    monkeypatch.setattr(outputs, "return_free_memory", lambda: trims.append(True))
    run(monkeypatch, "-i", tmp_path / "in", "-o", tmp_path / "out", "--window", 5)
    assert lines(tmp_path / "out") == ["thanks", "", "well yes"] * 7
    assert len(trims) == 2  # at 8 and 16 of 21 lines, though more lines had been read


def test_lines_written_before_an_error_are_kept(monkeypatch, tmp_path, capsys):
    (tmp_path / "in").write_text("danke\n" * 7 + "hallo\n" + "danke\n" * 9)
    run(monkeypatch, "-i", tmp_path / "in", "-o", tmp_path / "out", "--window", 2)
    (part,) = tmp_path.glob("out.*.part")
    assert lines(part) == ["thanks"] * 6  # three windows of two
    assert "toy has no table for 'hallo'" in capsys.readouterr().err
