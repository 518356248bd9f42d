"""Beyond chance: what a paired bootstrap with Holm's correction says, and what it must not say."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from npad.evaluate.metrics import METRICS
from npad.evaluate.significance import RESAMPLES, compare_with_all, holm

LOG_PROB, WER = METRICS["logprob"], METRICS["wer"]


def log_probs(values):
    return LOG_PROB.statistics([""] * len(values), values, [""] * len(values))


def test_holms_example():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([]) == []


@given(st.lists(st.floats(0, 1), max_size=8))
def test_a_correction_never_helps_and_keeps_the_order(values):
    adjusted = holm(values)
    assert all(p <= a <= 1 for p, a in zip(values, adjusted, strict=True))
    ranked = [a for _, a in sorted(zip(values, adjusted, strict=True))]
    assert ranked == sorted(ranked)


def test_a_clear_difference_is_beyond_chance_in_both_directions():
    random = np.random.default_rng(0)
    base = random.normal(-5, 1, 300)
    better = compare_with_all(LOG_PROB, log_probs(base + 0.5), {"base": log_probs(base)})["base"]
    worse = compare_with_all(LOG_PROB, log_probs(base), {"up": log_probs(base + 0.5)})["up"]
    assert (better.beats, better.is_beaten) == (True, False)
    assert (worse.beats, worse.is_beaten) == (False, True)
    assert better.difference.value == pytest.approx(0.5) == -worse.difference.value
    assert better.p == pytest.approx(2 / (RESAMPLES + 1))


def test_rounding_is_no_difference():
    base = np.full(50, -3.0)
    tie = compare_with_all(LOG_PROB, log_probs(base + 1e-5), {"base": log_probs(base)})["base"]
    assert (tie.p, tie.beats, tie.is_beaten) == (1.0, False, False)


def test_fewer_errors_are_better():
    few, many = np.array([[1.0, 10.0]] * 40), np.array([[3.0, 10.0]] * 40)
    found = compare_with_all(WER, few, {"many": many})["many"]
    assert found.beats
    assert found.difference.value == pytest.approx(-20)
    assert found.difference.low <= -20 <= found.difference.high


def test_noise_seldom_looks_like_a_difference():
    """Of 40 systems that are equally good, the correction leaves none better or worse, mostly."""
    random, wrong = np.random.default_rng(1), 0
    for _ in range(10):
        systems = {str(i): log_probs(random.normal(-5, 1, 60)) for i in range(40)}
        first = log_probs(random.normal(-5, 1, 60))
        found = compare_with_all(LOG_PROB, first, systems).values()
        wrong += any(comparison.beats or comparison.is_beaten for comparison in found)
    assert wrong <= 2
