"""Experiments beyond the paper: entropy, search errors, and the report of a whole run."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

import npad
from npad import Beam, Greedy
from npad.models import toy
from npad.reproduce import report
from npad.reproduce.bench import EvaluationSet
from npad.search.request import Decoding
from runs import lines, once, reversal
from runs import npad as command
from studies.beyond import experiment
from studies.beyond.bench import BeyondBench
from studies.beyond.entropy import entropy_by_step
from studies.beyond.outline import BEYOND

TOY: Any = npad.load("toy")
PHRASES = ["ich verstehe nur bahnhof", "na ja", "danke", "das ist mir wurst"]
SETS = dict.fromkeys(("valid", "test"), EvaluationSet(PHRASES, [""] * 4))


def bench(folder, **more) -> BeyondBench:
    return BeyondBench(folder, SETS, translator=lambda: TOY, **more)


def test_entropy_is_that_of_the_distribution_met_along_the_greedy_output():
    def entropy(row):
        left = 1 - sum(row.values())
        return -sum(p * math.log(p) for p in [*row.values(), *([left] if left > 1e-9 else [])])

    along = ["", "that", "that is", "that is sausage"]
    expected = [entropy(toy.PHRASES["das ist mir wurst"][history]) for history in along]
    found = entropy_by_step(TOY, ["das ist mir wurst", "das ist mir wurst", " "])
    assert found == [(pytest.approx(value, abs=1e-6), 2) for value in expected]


def test_an_output_that_never_ended_is_a_search_error(tmp_path):
    here = bench(tmp_path, limits=Decoding(Greedy(), 3))
    best = here.exact("test", 4, 10_000)
    outputs = TOY.translate(PHRASES, Greedy(), 3)
    assert not all(output.hypothesis.finished for output in outputs)
    missed = [
        not output.hypothesis.finished or output.log_prob < score - 1e-3
        for output, (score, _) in zip(outputs, best, strict=True)
    ]
    assert all(proven for _, proven in best)
    assert here.search_errors("test", Greedy(), 4, 10_000) == sum(missed) / 4
    assert here.search_errors("test", Greedy(), 4, 1) is None


def test_search_errors_are_what_exact_search_says(tmp_path):
    here = bench(tmp_path)
    phrases = PHRASES
    best = [max(output.log_prob for output in TOY.model.outputs(text, 200)) for text in phrases]
    assert here.exact("test", 4, 10_000) == [(pytest.approx(score), True) for score in best]
    shares = []
    for decoder in (Beam(20), Beam(2), Greedy()):
        outputs = TOY.translate(phrases, decoder)
        missed = [o.log_prob < score - 1e-3 for o, score in zip(outputs, best, strict=True)]
        shares.append(here.search_errors("test", decoder, 4, 10_000))
        assert shares[-1] == sum(missed) / 4
    assert shares[0] == 0 < shares[-1]


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    """A report of `npad reproduce` on a tiny model, and the same measured further."""

    def make(folder: Path) -> None:
        reversal(folder / "data", train=60, valid=4, test=3)
        small = ["--units", 8, "--embedding", 6, "--vocabulary", 300, "--epochs", 1]
        short = ["--seeds", 2, "--max-length", 6, "--device", "cpu", "--from", "src"]
        command("reproduce", folder / "run", "--data", folder / "data", *small, *short)
        (folder / "before.jsonl").write_bytes((folder / "run/results.jsonl").read_bytes())
        experiment.main(further(folder))

    return once(tmp_path_factory, "beyond", make)


def further(folder: Path) -> list[str]:
    options = ["--from", "src", "--device", "cpu", "--train-sigmas", "0.3", "--exact", "3"]
    return [str(folder / "run"), "--data", str(folder / "data"), "--budget", "50", *options]


def test_the_report_has_all_its_parts(finished):
    text = (finished / "run/README.md").read_text()
    parts = "Table 1, Table 4, claims, Equal compute, Schedules, Distributions, Search errors, "
    parts += "Noise in training, lower temperatures, candidate to return"
    for part in parts.split(", "):
        assert part in text
    assert (finished / "run/entropy.png").stat().st_size > 10_000
    assert "(entropy.png)" in text
    assert "the first tokens are the least certain" in text
    assert report.render(finished / "run", BEYOND) == text


def test_results_of_the_papers_tables_are_not_measured_again(finished):
    before = lines(finished / "before.jsonl")
    found = lines(finished / "run/results.jsonl")
    assert found[: len(before)] == before
    assert len(found) > 2 * len(before)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (["--model", "en-de"], "leave out --model"),
        (["--train-sigmas", "a,b"], "--train-sigmas must be numbers separated by commas, not"),
        (["--train-sigmas", "-1"], "must be a finite number above 0, not -1.0"),
    ],
)
def test_mistakes_are_one_line(finished, wrong, message):
    with pytest.raises(SystemExit, match=message):
        experiment.main([*further(finished), *wrong])
