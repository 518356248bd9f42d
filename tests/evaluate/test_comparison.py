"""Several decoders on one test set: intervals, and differences to the first."""

from __future__ import annotations

import json

import pytest
import sacrebleu

import npad as library
from npad import NPAD, Beam, Greedy, Noise
from npad.evaluate.bootstrap import paired
from npad.evaluate.comparison import compare, intervals
from npad.metrics.bleu import Bleu
from npad.metrics.metric import LogProb
from runs import npad, refused_here

SOURCES = ["ich verstehe nur bahnhof", "das ist mir wurst", "na ja", "danke"] * 5
REFERENCES = ["it is all greek to me", "i do not care", "oh well", "thanks"] * 5
DECODERS = {"greedy": Greedy(), "beam": Beam(3), "npad": NPAD(Greedy(), 5, Noise(0.3))}


@pytest.fixture
def files(tmp_path):
    for name, lines in (("a.src", SOURCES), ("a.ref", REFERENCES)):
        (tmp_path / name).write_text("".join(line + "\n" for line in lines))
    return "-i", tmp_path / "a.src", "--reference", tmp_path / "a.ref"


def test_a_comparison_is_evaluate_and_a_paired_bootstrap():
    toy = library.load("toy")
    measured = compare(toy, SOURCES, REFERENCES, DECODERS)
    assert list(measured) == list(DECODERS)
    bleu, counts, log_probs = Bleu(), {}, {}
    for name, decoder in DECODERS.items():
        outputs = toy.translate(SOURCES, decoder)
        texts = [output.text for output in outputs]
        expected = sacrebleu.corpus_bleu(texts, [REFERENCES]).score
        assert measured[name].report.bleu == pytest.approx(expected)
        assert (measured[name].nll, measured[name].bleu) == intervals(outputs, REFERENCES)
        counts[name] = bleu.statistics(texts, REFERENCES)
        log_probs[name] = LogProb.of([output.log_prob for output in outputs])
    for name in ("beam", "npad"):
        less = paired(LogProb(), (log_probs[name], log_probs["greedy"]), (-1, 1))
        assert measured[name].nll_gain == less
        assert measured[name].bleu_gain == paired(bleu, (counts[name], counts["greedy"]))
        assert less.value < 0
    assert measured["greedy"].bleu_gain is None


def test_an_interval_holds_its_value_and_shrinks_with_the_set():
    toy = library.load("toy")
    small, large = (
        compare(toy, SOURCES * n, REFERENCES * n, {"beam": Beam(1)})["beam"] for n in (1, 16)
    )
    for row in (small, large):
        assert row.nll.low < row.report.nll < row.nll.high
        assert row.bleu.low <= row.report.bleu <= row.bleu.high
    ratio = (small.nll.high - small.nll.low) / (large.nll.high - large.nll.low)
    assert ratio == pytest.approx(4, rel=0.2)


def test_compare_measures_a_test_set(files):
    table = npad("compare", "-m", "toy", *files, env={"COLUMNS": "80"}).stdout
    for text in ("a.src, 20 sentences, model toy", "BLEU against", "NPAD-10 +", "calls", "[low,"):
        assert text in table
    assert "95 % interval: paired bootstrap" in table
    assert max(map(len, table.splitlines())) <= 80
    header = next(line for line in table.splitlines() if line.startswith("strategy"))
    assert header.split()[-2:] == ["length", "calls"]


def test_the_first_decoder_is_what_others_are_compared_with(files):
    chosen = ("-d", "beam", "-d", "npad(chains=3)", "-d", "npad(chains=3,seed=4)", "--width", 2)
    done = npad("compare", "-m", "toy", *files, *chosen, "--json")
    first, *others = map(json.loads, done.stdout.splitlines())
    assert first["strategy"] == "beam, 2"
    assert "bleu_gain" not in first
    assert [row["strategy"] for row in others] == ["NPAD-3 + greedy", "npad(chains=3,seed=4)"]
    for row in others:
        assert row["bleu_gain"]["value"] == pytest.approx(row["bleu"] - first["bleu"])
        assert row["calls_per_sentence"] == row["calls"] / 20
        low, high = row["nll_interval"]
        assert low <= row["nll"] <= high


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["-i", "FILE"], "--input needs --reference"),
        (["--reference", "FILE"], "--reference needs --input"),
        (["-i", "FILE", "--reference", "FILE", "danke"], "give texts or --input, not both"),
        ([], "there is nothing to compare: give texts"),
        (["--json", "danke"], "--json needs a test set"),
        (["-d", "nothing", "danke"], "--decoder must be one of greedy"),
    ],
)
def test_half_a_test_set_is_refused(given, message, files, capsys, monkeypatch):
    given = [files[1] if word == "FILE" else word for word in given]
    assert message in refused_here(capsys, monkeypatch, "compare", "-m", "toy", *given)


def test_evaluate_shows_intervals_calls_a_sentence_and_a_legend(files):
    _, source, _, reference = files
    table = npad("evaluate", "-m", "toy", source, reference).stdout
    report = json.loads(npad("evaluate", "-m", "toy", source, reference, "--json").stdout)
    low, high = report["bleu_interval"]
    assert low <= report["bleu"] <= high
    assert f"{report['bleu']:.2f} [{low:.2f}, {high:.2f}]" in table
    assert f"{report['calls'] / 20:.1f} a sentence, {report['calls']:,} in all" in table
    assert "[low, high]   95 % interval" in table
