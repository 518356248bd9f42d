"""Recordings with transcripts: word error rate and cost of a decoder."""

from __future__ import annotations

import json
import shlex

import pytest
import torch

from npad import Greedy, InvalidInput
from npad.evaluate.speech import evaluate_speech
from npad.models.table import TableModel
from npad.pipelines.transcription import Transcriber
from runs import printed_here, refused_here
from speech_cases import RATE, saved
from speech_cases import whisper as whisper  # a fixture

# The model says "one two" to short windows and "one" to long ones.
LONG = {(): [0.1, 0.9, 0.0], (1,): [1.0, 0.0, 0.0]}
SHORT = {(): [0.1, 0.9, 0.0], (1,): [0.0, 0.0, 1.0], (1, 2): [1.0, 0.0, 0.0]}
MODEL = TableModel({"long": LONG, "short": SHORT}, dtype=torch.float64)
WORDS = ["", "1", "two"]


def transcriber():
    return Transcriber(
        MODEL,
        lambda windows: ["long" if len(w) > 100 else "short" for w in windows],
        lambda tokens: " ".join(WORDS[token] for token in tokens),
        rate=100,
        longest=2.0,
    )


def test_word_errors_are_counted():
    recordings = [torch.ones(50), torch.ones(150), torch.ones(60)]
    report, texts = evaluate_speech(
        transcriber(), recordings, ["one two", "One, two!", "two"], Greedy()
    )
    assert texts == ["1 two", "1", "1 two"]
    assert (report.errors, report.words, report.wer) == (2, 5, pytest.approx(40.0))
    low, high = report.wer_interval
    assert low <= report.wer <= high
    assert report.sound_seconds == pytest.approx(2.6)
    assert report.nll == pytest.approx(0.10536, abs=1e-4)
    assert report.calls == 3 + 2 + 3
    assert report.finished == 1


def test_recordings_and_references_are_pairs():
    with pytest.raises(InvalidInput, match="1 recordings and 2 references"):
        evaluate_speech(transcriber(), [torch.ones(50)], ["one", "two"], Greedy())
    with pytest.raises(InvalidInput, match="nothing to evaluate"):
        evaluate_speech(transcriber(), [], [], Greedy())


def test_the_command_evaluates_recordings(whisper, tmp_path, capsys, monkeypatch):
    noise = torch.rand(2, RATE // 4, generator=torch.Generator().manual_seed(0)) - 0.5
    files = [saved(tmp_path / f"{i}.wav", sound, RATE) for i, sound in enumerate(noise)]
    (tmp_path / "list").write_text("".join(f"{path}\n" for path in files))
    (tmp_path / "said").write_text("one two\nthree\n")
    test_set = ("evaluate", tmp_path / "list", tmp_path / "said", "-m", f"hf:{whisper}")
    options = ("-d", "greedy", "--max-length", 5, "--json", "-o", tmp_path / "heard")
    report = json.loads(printed_here(capsys, monkeypatch, *test_set, *options))
    assert (report["recordings"], report["words"]) == (2, 3)
    assert report["wer"] == pytest.approx(100 * report["errors"] / 3)
    assert len((tmp_path / "heard").read_text().splitlines()) == 2
    wrong = refused_here(capsys, monkeypatch, *test_set, "--precision", "bfloat16")
    assert wrong == "recordings are evaluated without --precision; leave it out"
    files[1].write_text("no sound")
    assert "is no WAV file" in refused_here(capsys, monkeypatch, *test_set)


def test_recordings_are_calibrated_by_word_error_rate(whisper, tmp_path, capsys, monkeypatch):
    noise = torch.rand(4, RATE // 4, generator=torch.Generator().manual_seed(0)) - 0.5
    files = [saved(tmp_path / f"{i}.wav", sound, RATE) for i, sound in enumerate(noise)]
    (tmp_path / "list").write_text("".join(f"{path}\n" for path in files))
    (tmp_path / "said").write_text("one two\nthree\nfour\nfive\n")
    test_set = ["calibrate", tmp_path / "list", tmp_path / "said", "-m", f"hf:{whisper}"]
    options = ["--calls", 14, "--max-length", 4, "--json"]
    data = json.loads(printed_here(capsys, monkeypatch, *test_set, *options))
    assert (data["metric"], data["lower_is_better"]) == ("WER", True)
    assert data["sentences"] == {"search": 2, "held_out": 2}
    line = shlex.split(data["command"]["best"])
    assert line[:2] == ["npad", "transcribe"]
    assert printed_here(capsys, monkeypatch, *line[1:]).count("\n") == 1
