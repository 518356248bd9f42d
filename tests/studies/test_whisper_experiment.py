"""The experiment with Whisper: resumable decoding, selection and the report."""

from __future__ import annotations

import pytest

from npad.metrics.wer import Wer
from runs import ROOT
from speech_cases import corpus as corpus  # a fixture
from speech_cases import whisper as whisper  # a fixture
from studies.hypotheses import Candidate, choose
from studies.whisper import experiment
from studies.whisper.report import comparisons, render, write
from studies.whisper.results import SELECTORS, Results, read_entries, selected

# Candidates: text, log p, tokens with the end, count, finished
FOUND = [
    ["one two", -1.0, 3, 1, True],
    ["1 2 3 4", -1.2, 5, 1, True],
    ["one two three", -2.0, 4, 5, True],
    ["one", -0.1, 2, 1, False],
]


@pytest.mark.parametrize(
    ("selector", "place"), [("log p", 0), ("length-normalised", 1), ("MBR by WER", 2)]
)
def test_selectors_choose_among_finished_candidates(selector, place):
    found = [Candidate(*entry) for entry in FOUND]
    assert choose(found, SELECTORS[selector]) == place
    assert choose(found[3:], SELECTORS[selector]) == 0


def test_errors_are_measured_on_the_selected_candidate():
    record = {"candidates": [FOUND, FOUND], "references": ["one two three", "1 2"]}
    probable = selected(record, "log p")
    assert probable.errors.tolist() == [[1, 2, 3], [0, 2, 2]]
    assert (Wer().score(probable.errors), probable.nll) == (20.0, 1.0)
    assert selected(record, "MBR by WER").nll == 2.0


@pytest.fixture(scope="module")
def ran(whisper, corpus, tmp_path_factory):
    """The experiment on a tiny random Whisper, in two sittings, the first of them killed."""
    out = tmp_path_factory.mktemp("ran") / "hypotheses.jsonl.gz"
    patch = pytest.MonkeyPatch()
    patch.setattr(experiment, "SIGMAS", (0.2, 0.5))
    patch.setattr(experiment, "SITES", ("hidden",))
    patch.setattr(experiment, "MAX_LENGTH", 6)
    patch.setattr(experiment, "DECIBELS", (20, 0))
    arguments = ["--model", f"hf:{whisper}", "--data", str(corpus), "--out", str(out)]
    arguments += ["--device", "cpu", "--test", "3", "--validation", "2", "--seeds", "2"]
    arguments += ["--sizes", "2", "3"]
    with patch.context():
        experiment.main(arguments)
        whole = read_entries(out)
        out.write_bytes(out.read_bytes()[:-200])
        cut = read_entries(out)
        experiment.main(arguments)
    patch.undo()
    return out, whole, cut


def without_time(records):
    return [{k: v for k, v in record.items() if k != "seconds"} for record in records]


def test_a_killed_run_continues_and_ends_the_same(ran):
    out, whole, cut = ran
    assert len(cut) == len(whole) - 1
    assert without_time(read_entries(out)) == without_time(whole)


def test_every_decoder_ran_on_every_set(ran):
    results = Results(ran[1])
    assert results.sets == ["20 dB", "0 dB"]
    assert len(results.calibration) == 4
    by_name = {name for name, *_ in results.systems}
    assert by_name == {"greedy", "beam", "recipe", "sampling", "npad"}
    assert len(results.systems) == 1 + 2 * (3 + 1 + 3 + 3)
    assert {tuple(results.seeds(s)) for s in results.systems if s.name == "npad"} == {(0, 1)}


def test_the_report_has_a_row_a_system_and_a_plot(ran, tmp_path):
    pytest.importorskip("matplotlib")
    out, whole, _ = ran
    write(out, tmp_path / "report")
    text = (tmp_path / "report/README.md").read_text()
    results = Results(whole)
    for system in results.systems:
        rows = len(results.sets) + 1 + (system.name == "greedy")  # greedy has a row in the overview
        assert text.count(f"| {system} |") == rows
    assert "| NPAD over greedy | 3 |" in text
    for compared in comparisons(results):
        assert f"{compared.difference} {compared.outcome}" in text
    assert (tmp_path / "report/wer.png").stat().st_size > 1000
    again = render(Results(read_entries(tmp_path / "report/hypotheses.jsonl.xz")))
    assert again == text


def test_the_committed_report_is_what_its_hypotheses_say():
    folder = ROOT / "docs/results/whisper"
    text = render(Results(read_entries(folder / "hypotheses.jsonl.xz")))
    assert text == (folder / "README.md").read_text()
