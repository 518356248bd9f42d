"""Successive halving for every budget at once: little theorems on candidates of known quality."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npad.calibrate.halving import Outcome, better_halves, frontier, halve, rung_sizes

POINTS = st.dictionaries(
    st.text("abcdefghij", min_size=1, max_size=2),
    st.builds(Outcome, st.integers(0, 9).map(float), st.integers(1, 9).map(float)),
    min_size=1,
    max_size=12,
)
SIZES = [2, 4, 8]


@st.composite
def noisy(draw):
    """Candidates whose quality is another on every rung, as on few sentences; the cost is too."""
    points = draw(POINTS)
    seeds = {(name, size): draw(st.integers(-3, 3)) for name in points for size in SIZES}

    def measure(name, size):
        shift = 0 if size == SIZES[-1] else seeds[name, size]
        cost = points[name].cost + (0 if size == SIZES[0] else 0.3 * seeds[name, size])
        return Outcome(points[name].quality + shift, max(cost, 0.1))

    return points, measure


def within(rung, budget):
    return {name: point for name, point in rung.points.items() if point.cost <= budget}


@given(noisy(), st.integers(1, 9), st.integers(0, 9))
def test_more_budget_never_lowers_the_frontier(case, budget, more):
    """At no cost up to the smaller budget."""
    points, measure = case
    found = [
        halve([[name] for name in points], SIZES, measure, amount)
        for amount in (budget, budget + more)
    ]
    if not found[0]:
        return
    small, large = (within(rungs[-1], budget) for rungs in found)
    assert small.items() <= large.items()
    for name in frontier(small):
        reached = [p.quality for p in large.values() if p.cost <= small[name].cost]
        assert max(reached) >= small[name].quality


@given(POINTS)
def test_without_noise_the_frontier_survives_to_the_end(points):
    rungs = halve([[name] for name in points], SIZES, lambda name, size: points[name], 9)
    assert {points[name] for name in frontier(points)} == {
        rungs[-1].points[name] for name in frontier(rungs[-1].points)
    }


def dominates(point, other):
    return point.cost <= other.cost and point.quality >= other.quality


@given(POINTS)
def test_a_frontier_is_pareto(points):
    found = frontier(points)
    for name in found:
        assert not any(dominates(p, points[name]) for p in points.values() if p != points[name])
    for name in points.keys() - set(found):
        assert any(dominates(points[best], points[name]) for best in found)
    costs = [points[name].cost for name in found]
    assert costs == sorted(costs)


@given(POINTS)
def test_half_of_equally_expensive_candidates_stay(points):
    costs = dict.fromkeys(points, 1.0)
    kept = better_halves(points, costs)
    assert len(kept) == (len(points) + 1) // 2
    worst = min(points[name].quality for name in kept)
    assert all(points[name].quality <= worst for name in points.keys() - set(kept))


def test_a_ladder_ends_at_the_first_that_is_too_expensive():
    measured = []

    def measure(name, size):
        measured.append(name)
        return Outcome(1.0, float(name[1:]))

    rungs = halve([["a1", "a5", "a9"], ["b2", "b3"]], [2], measure, 4)
    assert measured == ["a1", "a5", "b2", "b3"]
    assert list(rungs[0].points) == ["a1", "b2", "b3"]
    assert halve([["a5"]], [2], measure, 4) == []


@pytest.mark.parametrize(
    ("sentences", "expected"),
    [(200, [25, 50, 100, 200]), (47, [24, 47]), (24, [24]), (3, [3]), (1, [1])],
)
def test_rungs_double(sentences, expected):
    assert rung_sizes(sentences, 24) == expected
