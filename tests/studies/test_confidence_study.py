"""The study of confidence: its report, and what escalation counts."""

from __future__ import annotations

import numpy as np
import pytest

from npad.evaluate.confidence import default_signals
from npad.evaluate.risk import auroc
from npad.metrics.wer import Wer
from npad.reproduce.record import Record
from runs import ROOT
from studies.confidence.experiment import Escalation, compared, signalled
from studies.confidence.report import render
from studies.confidence.tasks import LOG_P, Outputs, Part
from studies.hypotheses import Candidate

FOLDER = ROOT / "docs/results/confidence"
# Two inputs: greedy search is right and sure, then wrong and unsure; a beam finds both.
GREEDY = [[Candidate("one two", -0.1, 3, 1, True)], [Candidate("two", -4.0, 2, 1, True)]]
BEAM = [
    [Candidate("one two", -0.1, 3, 1, True), Candidate("1, 2", -0.2, 4, 1, True)],
    [Candidate("three", -1.0, 2, 1, True), Candidate("two", -4.0, 2, 1, True)],
]


@pytest.fixture
def part():
    outputs = {
        "greedy": Outputs.of(GREEDY, np.array([3.0, 2.0]), str.lower),
        "beam 20": Outputs.of(BEAM, np.array([60.0, 40.0]), str.lower),
    }
    return Part(Wer(), ["one two", "three"], outputs)


def test_the_report_is_rendered_from_its_results():
    assert render(Record(FOLDER / "figures.jsonl")) == (FOLDER / "README.md").read_text()


def test_escalation_pays_for_the_second_search_where_it_runs(part):
    policy = Escalation(part, ("greedy", LOG_P), ("beam 20", LOG_P))
    threshold = policy.threshold(0.5)
    assert policy.outputs(threshold) == ["one two", "three"]
    assert policy.cost(threshold) == (3 + 2 + 40) / 2
    assert (policy.outputs(-9.0), policy.cost(-9.0)) == (["one two", "two"], 2.5)
    assert compared(part, policy.outputs(threshold), policy.outputs(-9.0)).value < 0


def test_signals_are_of_the_greedy_output_in_the_others_list(part):
    found = signalled(part, "beam 20", default_signals(Wer()))
    assert found.bad.tolist() == [0, 1]
    posterior = found.signals["posterior"]
    assert posterior[1] == pytest.approx(np.exp(-4) / (np.exp(-1) + np.exp(-4)))
    assert auroc(posterior, found.bad) == 1
