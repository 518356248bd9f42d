"""An experiment's bench measures what it says, measures it once, and records it."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import npad
from cases import counting_tokeniser
from npad import NPAD, Beam, BestOf, Greedy, LengthNormalised, Noise, Sampling
from npad.errors import StorageError
from npad.evaluate.report import Evaluation
from npad.reproduce import reproduce
from npad.reproduce.bench import Bench, EvaluationSet, decoder_signature
from npad.reproduce.record import NotMeasured, Record, has_form, is_number, is_text
from npad.search.request import Decoding

TOY: Any = npad.load("toy")
PHRASES = ["das ist mir wurst", "danke", "na ja", "ich verstehe nur bahnhof"]
REFERENCES = ["i could not care less", "thanks", "oh well", "it is all greek"]
SETS = {
    "valid": EvaluationSet(PHRASES, REFERENCES),
    "test": EvaluationSet(PHRASES[::-1], REFERENCES[::-1]),
}


def bench(folder, **more) -> Bench:
    return Bench(folder, SETS, **({"translator": lambda: TOY} | more))


@pytest.mark.parametrize("suffix", ["jsonl", "jsonl.gz"])
def test_a_record_measures_once_and_again_after_a_cut(suffix, tmp_path):
    path = tmp_path / f"results.{suffix}"
    Record(path).row(("a", 1), lambda: [1.5])
    Record(path).row(("b",), lambda: {"x": 2})
    assert Record(path).row(("a", 1), lambda: pytest.fail("measured twice")) == [1.5]
    whole = Record(path).results
    cut = path.read_bytes()[:-20]  # as a kill leaves it
    path.write_bytes(cut)
    assert Record(path).results.keys() == {("a", 1)}
    assert path.read_bytes() == cut  # reading changes nothing
    Record(path).row(("b",), lambda: {"x": 2})
    assert Record(path).results == whole
    Record(path).save(tmp_path / "kept.jsonl.xz")
    assert Record(tmp_path / "kept.jsonl.xz").results == whole


def test_a_record_names_what_is_damaged_or_missing(tmp_path):
    path = tmp_path / "results.jsonl"
    Record(path).row(("a",), lambda: 1)
    with pytest.raises(StorageError, match=r"the result of \('a',\) has another form; delete"):
        Record(path).row(("a",), valid=lambda value: value > 1)
    with pytest.raises(NotMeasured, match=r"has no result for \('b',\); measuring it needs"):
        Record(path).row(("b",))
    path.write_bytes(b"{" + path.read_bytes())
    with pytest.raises(StorageError, match=r"results.jsonl, line 1, is damaged"):
        Record(path)


def test_a_record_without_a_path_keeps_values_as_json_has_them():
    record = Record(before=lambda key: asked.append(key))
    asked: list[Any] = []
    assert record.row(("a",), lambda: (1, 2)) == record.row(("a",)) == [1, 2]
    assert asked == [("a",)]


@pytest.mark.parametrize(
    ("value", "form", "matches"),
    [
        ({"a": 1.5}, {"a": is_number}, True),
        ({"a": 1.5, "b": 1}, {"a": is_number}, False),
        ([[1, "x"], [2, "y"]], [(is_number, is_text)], True),
        ([[1, 2]], [(is_number, is_text)], False),
        ([[1]], [(is_number, is_text)], False),
        (True, is_number, False),
        (math.nan, is_number, False),
        (None, {"a": is_number}, False),
    ],
)
def test_a_form_describes_nested_values(value, form, matches):
    assert has_form(value, form) is matches


@pytest.mark.parametrize(
    "decoder",
    [Beam(3), NPAD(chains=4, noise=Noise(0.5)), BestOf((Greedy(), Sampling(5, 0.5)))],
    ids=["beam", "npad", "best-of"],
)
def test_a_row_has_the_figures_of_evaluate(decoder, tmp_path):
    row = bench(tmp_path).row("test", decoder)
    report, outputs = Evaluation(TOY, PHRASES[::-1], REFERENCES[::-1]).evaluate(Decoding(decoder))
    expected = report.to_json()
    names = "sentences nll bleu length_ratio finished calls rescored signature"
    for name in names.split():
        assert row[name] == pytest.approx(expected[name])
    assert row["distinct"] == report.unique
    assert row["won"] == sum(one.hypothesis.chain > 0 for one in outputs) / 4
    without = Bench(tmp_path, list(SETS))
    assert without.row("test", decoder) == row
    with pytest.raises(NotMeasured, match="measuring it needs a model"):
        without.row("valid", decoder)


def test_every_source_is_tokenised_once(tmp_path, monkeypatch):
    """However many decoders translate it."""
    translator, read = counting_tokeniser(TOY)
    monkeypatch.setattr(reproduce, "load", lambda *_: translator)
    plan: Any = SimpleNamespace(device="cpu", precision="float32", place=lambda there, _: there)
    here = bench(tmp_path, translator=lambda: reproduce.loaded(plan, tmp_path, SETS))
    for decoder in (Greedy(), Beam(2)):
        here.row("valid", decoder)
        here.row("test", decoder)
    assert sorted(read) == sorted(PHRASES)


def test_rows_are_found_by_the_decoder_without_the_model():
    assert "model" not in decoder_signature(NPAD(selector=LengthNormalised()))


def test_figures_are_means_over_seeds(tmp_path):
    here = bench(tmp_path, seeds=4)
    rows = [here.row("test", Sampling(2, seed=seed)) for seed in range(4)]
    found = here.figures("test", Sampling(2))
    values = [row["nll"] for row in rows]
    mean, spread = np.mean(values), np.std(values, ddof=1)
    assert (found["nll"], found.spread("nll")) == (pytest.approx(mean), pytest.approx(spread))
    assert found.format("nll", 3) == f"{mean:.3f} ± {spread:.3f}"
    assert here.figures("test", Beam(2)).format("nll") == f"{here.row('test', Beam(2))['nll']:.2f}"
