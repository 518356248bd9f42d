"""What holds on other sentences: intervals, and p values with Holm's correction."""

from __future__ import annotations

from dataclasses import astuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from npad.evaluate import bootstrap
from npad.evaluate.bootstrap import RESAMPLES, compare_with_all, holm, paired
from npad.metrics.metric import LogProb
from npad.metrics.wer import Wer
from npad.reproduce.claims import verdict

LOG_PROB = LogProb()


def test_interval_is_as_wide_as_chance():
    """Of a mean of n values with standard deviation s, the 95 % interval is about ± 1.96 s/√n."""
    values = np.random.default_rng(0).normal(size=400)
    difference = paired(LOG_PROB, [LogProb.of(values), LogProb.of(np.zeros(400))])
    assert difference.high - difference.low == pytest.approx(2 * 1.96 * values.std() / 20, rel=0.1)


@pytest.mark.parametrize("metric", [LOG_PROB, Wer()], ids=["log p", "WER"])
def test_resampling_in_parts_is_resampling_at_once(metric, monkeypatch):
    systems = np.random.default_rng(0).uniform(0.5, 1, size=(2, 30, 3))
    whole = paired(metric, systems, samples=50)
    monkeypatch.setattr(bootstrap, "MAX_DRAWN", 70)  # two test sets of 30 sentences at a time
    part = paired(metric, systems, samples=50)
    assert astuple(part) == pytest.approx(astuple(whole), abs=1e-9)
    assert part.low < part.value < part.high


def test_interval_of_two_gains_is_that_of_the_weighted_sum():
    systems = [LogProb.of(np.random.default_rng(i).normal(size=50)) for i in range(4)]
    combined = LogProb.of(sum(w * s[:, 0] for w, s in zip((1, -1, -1, 1), systems, strict=True)))
    found = paired(LOG_PROB, systems, weights=(1, -1, -1, 1))
    assert astuple(found) == pytest.approx(astuple(paired(LOG_PROB, [combined], weights=(1,))))


def test_verdicts_name_what_is_better_and_what_is_worse():
    random = np.random.default_rng(5)
    good, bad = random.normal(-1, 0.1, 200), random.normal(-3, 0.1, 200)
    less = paired(LOG_PROB, [LogProb.of(good), LogProb.of(bad)], (-1, 1))
    more = paired(LOG_PROB, [LogProb.of(good), LogProb.of(bad)])
    same = paired(LOG_PROB, [LogProb.of(good)] * 2)
    assert astuple(same) == (0, 0, 0)
    assert verdict((less, more)) == "confirmed"
    assert verdict((same, same)) == "not confirmed"
    assert verdict((more, less)) == "not confirmed; NLL is worse; BLEU is worse"
    assert verdict((less, same)) == "NLL only"


@given(st.lists(st.floats(0, 1), max_size=8))
def test_holms_correction_never_helps_and_keeps_the_order(values):
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    adjusted = holm(values)
    assert all(p <= a <= 1 for p, a in zip(values, adjusted, strict=True))
    ranked = [a for _, a in sorted(zip(values, adjusted, strict=True))]
    assert ranked == sorted(ranked)


def test_a_clear_difference_is_beyond_chance_in_both_directions_and_rounding_is_not():
    base = np.random.default_rng(0).normal(-5, 1, 300)
    plain, raised = LogProb.of(base), LogProb.of(base + 0.5)
    better = compare_with_all(LOG_PROB, raised, {"base": plain})["base"]
    worse = compare_with_all(LOG_PROB, plain, {"raised": raised})["raised"]
    assert (better.beats, better.is_beaten) == (True, False)
    assert (worse.beats, worse.is_beaten) == (False, True)
    assert better.difference.value == pytest.approx(0.5) == -worse.difference.value
    assert better.p == pytest.approx(2 / (RESAMPLES + 1))
    rounded = compare_with_all(LOG_PROB, LogProb.of(base + 1e-5), {"base": plain})["base"]
    assert (rounded.p, rounded.beats, rounded.is_beaten) == (1.0, False, False)


def test_equally_good_systems_seldom_differ_beyond_chance():
    """Of 40 systems that are equally good, the correction leaves none better or worse, mostly."""
    random, wrong = np.random.default_rng(1), 0
    for _ in range(10):
        systems = {str(i): LogProb.of(random.normal(-5, 1, 60)) for i in range(40)}
        first = LogProb.of(random.normal(-5, 1, 60))
        found = compare_with_all(LOG_PROB, first, systems).values()
        wrong += any(comparison.beats or comparison.is_beaten for comparison in found)
    assert wrong <= 2
