"""Ragged work in rectangles: all of it, none twice, within bounds, and little padding."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from npad.rescoring.plan import rectangles
from plain import plain_rectangles

ragged = arrays(
    np.int64, st.tuples(st.integers(1, 12), st.integers(1, 12)), elements=st.integers(0, 20)
).map(lambda sizes: -np.sort(-sizes, axis=1))


def cost(sizes, parts):
    return sum(
        len(groups) * (places.stop - places.start) * sizes[groups, places].max()
        for groups, places in parts
    )


@given(sizes=ragged, most=st.sampled_from([1, 7, 50, np.inf]), spare=st.integers(0, 20))
def test_everything_is_in_one_rectangle_within_bounds(sizes, most, spare):
    parts = list(rectangles(sizes, most, spare))
    seen = np.zeros_like(sizes)
    for groups, places in parts:
        seen[groups, places] += 1
        rows = len(groups) * (places.stop - places.start)
        assert rows == 1 or rows * sizes[groups, places].max() <= most
    assert seen.max(initial=0) <= 1
    assert (seen[sizes > 0] == 1).all()
    assert cost(sizes, parts) <= sizes.size * sizes.max()


def test_the_plan_equals_its_plain_implementation():
    for seed in range(200):
        random = np.random.default_rng(seed)
        shape = random.integers(1, 9, 2)
        lengths = random.integers(1, 20, (shape[0], 1)) + random.integers(0, 5, shape)
        places = np.arange(shape[1])
        sizes = np.where(places < random.integers(0, shape[1] + 1, (shape[0], 1)), lengths, 0)
        sizes = -np.sort(-sizes, axis=1)
        most, spare = random.choice([1, 7, 50, np.inf]), int(random.choice([0, 1, 8]))
        found = [
            (groups.tolist(), (places.start, places.stop))
            for groups, places in rectangles(sizes, most, spare)
        ]
        assert found == plain_rectangles(sizes.tolist(), most, spare)


def test_one_long_one_does_not_make_all_long():
    sizes = np.full((100, 50), 20)
    sizes[3, 0] = 200
    assert cost(sizes, list(rectangles(sizes))) <= sizes.sum() * 1.05


@pytest.mark.parametrize("spare", [8, 256])
def test_little_of_it_is_padding(spare):
    generator = np.random.default_rng(0)
    lengths = np.sort(generator.poisson(25, (1000, 1)), axis=0) + generator.poisson(4, (1000, 50))
    sizes = -np.sort(-np.where(generator.random((1000, 50)) < 0.6, lengths, 0), axis=1)
    parts = list(rectangles(sizes, 131072, spare))
    assert cost(sizes, parts) <= sizes.sum() * 1.3
    assert len(parts) < 300


def test_small_work_stays_whole():
    assert len(list(rectangles(np.array([[9, 8, 7], [8, 8, 0]])))) == 1
