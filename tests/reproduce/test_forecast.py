"""The progress of `npad reproduce`: its total and the time left."""

from __future__ import annotations

from functools import partial

import pytest

from npad.cli.display import Display
from npad.reproduce import reproduce as experiment
from npad.reproduce.bench import EvaluationSet
from npad.reproduce.forecast import Forecast, Outlook
from npad.reproduce.report import Setup, markdown_of
from runs import ROOT
from studies.beyond.bench import BeyondBench
from studies.beyond.outline import BEYOND

RESULTS = ROOT / "docs/results"


def bench_of(name: str) -> tuple[BeyondBench, Setup]:
    """A committed report's bench, and its setup."""
    setup = Setup.load(RESULTS / name)
    sets = {name: EvaluationSet([""] * size, [""] * size) for name, size in setup.sets.items()}
    return BeyondBench(RESULTS / name, sets, seeds=setup.seeds), setup


@pytest.mark.parametrize("name", ["multi30k-adadelta", "multi30k-adam"])
def test_the_total_is_near_the_number_of_results_from_the_start(name):
    bench, setup = bench_of(name)
    recorded = bench.record.results
    bench.record.results = {}
    outlook = Forecast(bench, partial(markdown_of, setup=setup, outline=BEYOND)).outlook()
    assert outlook.done == 0
    assert outlook.seconds_left is None
    assert outlook.total == pytest.approx(len(recorded), rel=0.02)
    bench.record.results = recorded
    outlook = Forecast(bench, partial(markdown_of, setup=setup, outline=BEYOND)).outlook()
    assert outlook.done == outlook.total == len(recorded)


def test_the_time_left_is_at_the_rate_of_this_run():
    now = 0.0
    bench, setup = bench_of("multi30k-adadelta")
    recorded, bench.record.results = bench.record.results, {}
    forecast = Forecast(bench, partial(markdown_of, setup=setup, outline=BEYOND), lambda: now)
    half = dict(list(recorded.items())[: len(recorded) // 2])
    bench.record.results, now = half, 100.0
    halfway = forecast.outlook()
    bench.record.results, now = recorded, 200.0
    assert halfway.seconds_left > 0
    assert forecast.outlook() == Outlook(len(recorded), len(recorded), 0.0)
    bench.record.results, now = half, 200.0
    assert forecast.outlook().seconds_left == pytest.approx(2 * halfway.seconds_left)
    bench.record.results, now = recorded, 300.0  # continued: results of an earlier run took no time
    assert (
        Forecast(bench, partial(markdown_of, setup=setup, outline=BEYOND)).outlook().seconds_left
        is None
    )


def test_forecasts_take_a_small_share_of_the_time():
    now, rendered = 0.0, 0

    def render(bench):
        nonlocal now, rendered
        now, rendered = now + 1, rendered + 1  # a second for each forecast

    bench, _ = bench_of("multi30k-adadelta")
    recorded = bench.record.results
    forecast = Forecast(bench, render, lambda: now)
    for count in range(100):
        bench.record.results = dict(list(recorded.items())[:count])
        assert forecast.outlook().done == count
        now += 1  # and for each measurement
    assert rendered == 10


def test_a_log_gets_the_total_and_the_time_left_now_and_then(capsys):
    display = Display()
    with display.live():
        display.measuring("row · valid · greedy", Outlook(3, 154, None))
        display.measuring("row · valid · beam", Outlook(4, 154, 30.0))
        display.noted -= 60
        display.measuring("row · valid · beam", Outlook(9, 154, 90.4))
    assert capsys.readouterr().err.splitlines() == [
        "npad: 3 of about 154 measured; row · valid · greedy",
        "npad: 9 of about 154 measured, about 1:30 left; row · valid · beam",
    ]


def test_an_interrupt_names_the_results_and_how_to_continue():
    bench, _ = bench_of("multi30k-adadelta")
    with pytest.raises(KeyboardInterrupt) as stopped, experiment._continuable(bench):
        raise KeyboardInterrupt
    (note,) = stopped.value.__notes__
    path = RESULTS / "multi30k-adadelta/results.jsonl"
    assert note == f"154 results are in {path}: the same command continues after them"
