"""The report on steering states its aims as reached or missed by what the figures are."""

from __future__ import annotations

import pytest

from npad.reproduce.record import Record
from runs import ROOT
from studies.steering.aims import SetResults, above_beam, aims, fast, near, reached
from studies.steering.report import RESULTS, main, render

GREEDY, STEERED, BEAM = "greedy", "steered greedy", "beam 5"
NPAD, NORMALISED = "steered NPAD-5, length-normalised", "beam 10, length-normalised"


def results(path, titles=("toy",), gap=-0.1, times=(1.0, 1.1), npad=0.0, calls=(60, 90)) -> Record:
    """Record with a given distance to the beam, times of greedy and steered search, and NPAD."""
    found = Record(path / RESULTS)

    def add(key, value):
        found.row(key, lambda: value)

    def figures(bleu, calls=10):
        return {"nll": 3.0, "bleu": bleu, "chrf": 60.0, "length": 1.0, "calls": calls} | {
            "rescored": 0,
            "finished": 1.0,
            "signature": "",
        }

    def difference(value):
        return {name: {"value": value, "low": value - 1, "high": value + 1} for name in names}

    names = ("nll", "bleu")
    for title in titles:
        model = {"name": "m", "units": 8}
        about = {"title": title, "set": "test", "sentences": 9, "model": model, "torch": "2"}
        add(("about", title), about | {"perplexity": None})
        for system, bleu in ((GREEDY, 40.0), (BEAM, 41.0), (NPAD, 42.0), (NORMALISED, 42.0)):
            steps = dict(zip((NPAD, NORMALISED), calls, strict=True)).get(system, 10)
            add(("figures", title, system, 0), figures(bleu, steps))
        for seed in range(2):
            add(("figures", title, STEERED, seed), figures(41.0 + gap + 0.1 * (2 * seed - 1)))
        add(("difference", title, STEERED, BEAM), difference(gap))
        add(("difference", title, STEERED, GREEDY), difference(1 + gap))
        add(("difference", title, BEAM, GREEDY), difference(1.0))
        add(("difference", title, NPAD, NORMALISED), difference(npad))
        for system, seconds in zip((GREEDY, STEERED), times, strict=True):
            passes = [9.0, seconds, seconds]
            timed = {"sentences": 9, "device": "a GPU", "seconds": passes}
            add(("seconds", title, "cuda", system), timed)
    return found


@pytest.mark.parametrize(
    ("gap", "times", "verdict"),
    [
        (-0.1, (1.0, 1.1), True),
        (-0.2, (2.0, 2.4), True),
        (0.5, (1.0, 0.9), True),
        (-0.3, (1.0, 1.1), False),
        (-0.1, (1.0, 1.3), False),
    ],
)
def test_the_first_aim_is_near_the_beam_at_greedy_searchs_time(tmp_path, gap, times, verdict):
    found = results(tmp_path, gap=gap, times=times)
    data = SetResults(found, "toy")
    assert (near(data), fast(data)) == (gap >= -0.2, times[1] / times[0] <= 1.2)
    assert reached(data) is verdict
    (line,) = [line for line in aims([data]).splitlines() if line.startswith("| toy | ")]
    assert line.endswith("| reached |" if verdict else "| missed |")
    assert f"| {times[1] / times[0]:.2f} |" in line


@pytest.mark.parametrize(
    ("npad", "calls", "verdict"),
    [(0.0, (60, 90), True), (0.4, (90, 90), True), (-0.01, (60, 90), False), (1, (91, 90), False)],
)
def test_the_second_aim_is_no_worse_than_the_beam_for_no_more_calls(tmp_path, npad, calls, verdict):
    found = results(tmp_path, npad=npad, calls=calls)
    assert above_beam(SetResults(found, "toy")) is verdict
    answer = render(found).splitlines()[2]
    assert answer.endswith(
        f"on {int(verdict)} of 1: the aim, all of them, is **{'reached' * verdict or 'missed'}**."
    )


def test_two_sets_reach_the_aim_and_one_does_not(tmp_path):
    one, two = (tmp_path / name for name in ("one", "two"))
    one.mkdir(), two.mkdir()
    texts = [render(results(one)), render(results(two, ("a", "b")))]
    for text, count, verdict in zip(texts, (1, 2), ("missed", "reached"), strict=True):
        assert f"within 0.2 BLEU of a beam of 5 on {count} of {count} data sets" in text
        assert f"the {count} that were timed: the aim, both on 2 sets, is **{verdict}**" in text


def test_what_was_not_timed_reaches_nothing(tmp_path):
    found = results(tmp_path)
    for system in (GREEDY, STEERED):
        del found.results["seconds", "toy", "cuda", system]
    data = SetResults(found, "toy")
    assert fast(data) is None
    assert not reached(data)
    assert "on 0 of the 0 that were timed" in render(found)
    assert (
        "| toy | -0.10 [-1.10, +0.90] | +0.00 | yes | – | – | – | – | – | – | missed |"
        in render(found)
    )


def test_the_report_says_what_limits_it(tmp_path):
    found = results(tmp_path)
    few = found.results["figures", "toy", BEAM, 0] | {"calls": 8.9}
    point = {"epoch": 1, "criterion": 20.0, "perplexity": 2.0}
    variant = {"rate": 1e-3, "epochs": 1}
    added = {
        ("figures", "toy", "shared samples for beam 5", 0): few,
        ("weights", "toy", "weights", 0): {"variant": variant, "greedy": 21.0, "curve": [point]},
        ("chosen", "toy"): {"log_prob": {"clean": {"0.5": -3, "1.0": -2}, "steered": {"0.5": -1}}},
    }
    for key, value in added.items():
        found.row(key, lambda value=value: value)
    found.results["chosen", "toy"]["log_prob"]["steered"]["1.0"] = -2
    text = render(found)
    assert (
        "- toy: shared samples for beam 5 are not at equal calls, 9 calls of the beam's 10." in text
    )
    assert (
        "- toy: the fine-tuned weights never beat greedy search on the validation set with 1"
        in text
    )
    assert "- toy: σ₀ over the clean model is the largest that was tried, 1.0;" in text
    few["calls"] = 9.1
    found.results["figures", "toy", "shared samples for beam 5", 0] = few
    assert "equal calls, " not in render(found)


def test_notes_are_stored_with_the_figures(tmp_path):
    results(tmp_path)
    main([str(tmp_path), "--note", "toy", "Timed at night.", "--note", "toy", "Twice."])
    assert "\n- Timed at night.\n- Twice.\n" in (tmp_path / "README.md").read_text()
    main([str(tmp_path)])
    assert "\n- Timed at night.\n- Twice.\n" in (tmp_path / "README.md").read_text()


def test_the_report_is_written_again_from_its_results(tmp_path):
    expected = render(results(tmp_path))
    main([str(tmp_path)])
    assert (tmp_path / "README.md").read_text() == expected
    with pytest.raises(SystemExit, match=r"^error: .* has no results; run the experiment first$"):
        main([str(tmp_path / "empty")])


FOLDER = ROOT / "docs/results/steering"


def test_the_committed_report_is_what_its_figures_say():
    assert render(Record(FOLDER / RESULTS)) == (FOLDER / "README.md").read_text()
