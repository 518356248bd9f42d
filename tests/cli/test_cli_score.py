"""npad score: the log-probability of given pairs."""

from __future__ import annotations

import json

import pytest

import npad as package
from cases import counting_tokeniser
from runs import lines


def test_score_is_the_log_probability_of_pairs(corpus, trained, tmp_path, npad_here):
    done = npad_here("score", corpus / "test.src", corpus / "test.tgt", "--model", trained)
    scores = [float(line) for line in done.stdout.splitlines()]
    translator = package.load(trained)
    expected = translator.score(lines(corpus / "test.src"), lines(corpus / "test.tgt"))
    assert scores == pytest.approx(expected, abs=1e-4)
    toy = json.loads(npad_here("score", "-m", "toy", "--text", "--json", "danke", "thanks").stdout)
    assert toy["log_prob"] == pytest.approx(-0.13582, abs=1e-5)


def test_score_tokenises_every_source_once(tmp_path, printed_here, monkeypatch):
    translator, read = counting_tokeniser(package.load("toy"))
    monkeypatch.setattr("npad.cli.score.load_as", lambda *_: translator)
    (tmp_path / "a").write_text("danke\nna ja\n")
    (tmp_path / "b").write_text("thanks\nwell yes\n")
    printed_here("score", tmp_path / "a", tmp_path / "b")
    assert sorted(read) == ["danke", "na ja"]
