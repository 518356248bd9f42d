"""The report on steering states its aims as reached or missed by what the figures are."""

from __future__ import annotations

import shutil

import pytest

from npad.reproduce.record import Record
from runs import ROOT
from studies.steering.aims import SetResults, above_beam, aims, fast, near, reached
from studies.steering.report import RESULTS, main, render

FOLDER = ROOT / "docs/results/steering"
SETS = ["Tatoeba", "Multi30k", "WMT"]
NPAD, NORMALISED = "steered NPAD-5, length-normalised", "beam 10, length-normalised"


@pytest.fixture
def found() -> Record:
    """The committed figures, to be changed in memory."""
    return Record(FOLDER / RESULTS)


def set_gap(found, title, first, second, value):
    gap = {"value": value, "low": value - 1, "high": value + 1}
    found.results["difference", title, first, second] = {"nll": gap, "bleu": gap}


def set_aim(found, title, gap, times=(1.0, 1.1)):
    """Set the distance of steered search to a beam, and times of greedy and steered search."""
    set_gap(found, title, "steered greedy", "beam 5", gap)
    for system, seconds in zip(("greedy", "steered greedy"), times, strict=True):
        found.results["seconds", title, "cuda", system]["seconds"] = [9.0, seconds, seconds]


def test_the_committed_report_is_what_its_figures_say(found):
    assert render(found) == (FOLDER / "README.md").read_text()


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
def test_the_first_aim_is_near_the_beam_at_greedy_searchs_time(found, gap, times, verdict):
    set_aim(found, "WMT", gap, times)
    data = SetResults(found, "WMT")
    assert (near(data), fast(data)) == (gap >= -0.2, times[1] / times[0] <= 1.2)
    assert reached(data) is verdict
    (line,) = [line for line in aims([data]).splitlines() if line.startswith("| WMT | ")]
    assert line.endswith("| reached |" if verdict else "| missed |")
    assert f"| {times[1] / times[0]:.2f} |" in line  # medians, not the slow first pass


@pytest.mark.parametrize(
    ("gap", "calls", "verdict"),
    [(0.0, (60, 90), True), (0.4, (90, 90), True), (-0.01, (60, 90), False), (1, (91, 90), False)],
)
def test_the_second_aim_is_no_worse_than_the_beam_for_no_more_calls(found, gap, calls, verdict):
    for title in SETS:
        set_gap(found, title, NPAD, NORMALISED, gap)
        for (kind, *key), value in found.results.items():
            if kind == "figures" and key[:2] in ([title, NPAD], [title, NORMALISED]):
                value["calls"] = calls[key[1] == NORMALISED]
    assert above_beam(SetResults(found, "WMT")) is verdict
    summary = f"on {3 * verdict} of 3: the aim, all of them, is **"
    assert f"{summary}{'reached' if verdict else 'missed'}**" in render(found)


@pytest.mark.parametrize("count", [1, 2])
def test_two_sets_reach_the_first_aim_and_one_does_not(found, count):
    for title in SETS:
        set_aim(found, title, -0.1 if title in SETS[:count] else -1.0)
    text = render(found)
    assert f"within 0.2 BLEU of a beam of 5 on {count} of 3 data sets" in text
    assert f"the aim, both on 2 sets, is **{'reached' if count == 2 else 'missed'}**" in text


def test_an_aim_that_was_not_timed_is_missed(found):
    for key in [key for key in found.results if key[0] == "seconds"]:
        del found.results[key]
    data = SetResults(found, "WMT")
    assert fast(data) is None
    assert not reached(data)
    assert "on 0 of the 0 that were timed" in render(found)


def test_notes_are_stored_and_the_report_is_written_again(tmp_path):
    shutil.copy(FOLDER / RESULTS, tmp_path)
    main([str(tmp_path), "--note", "toy", "Timed at night.", "--note", "toy", "Twice."])
    main([str(tmp_path)])
    assert "\n- Timed at night.\n- Twice.\n" in (tmp_path / "README.md").read_text()
    with pytest.raises(SystemExit, match=r"^error: .* has no results; run the experiment first$"):
        main([str(tmp_path / "empty")])
