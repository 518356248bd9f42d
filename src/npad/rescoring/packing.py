"""Ragged work as rectangles: which hypotheses to read together, so that little of what a model reads is padding."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

Sizes = NDArray[np.int64]


def rectangles(sizes: Sizes, most: float = np.inf, spare: int = 8) -> Iterator[tuple[Sizes, slice]]:
    """Cut sizes [groups, n], each row from large to small, into rectangles: some groups, and a range of their places.

    Every size above 0 is in one of them. A rectangle costs its rows times its largest size; it is cut where it costs
    more than `most` and has more than one row, or where that spares more than another pass takes: each step of one
    is worth `spare` rows in a step that is taken anyway.
    """
    return _cut(sizes, np.arange(len(sizes)), slice(0, sizes.shape[1]), most, spare)


def _cut(sizes: Sizes, groups: Sizes, places: slice, most: float, spare: int) -> Iterator[tuple[Sizes, slice]]:
    here = sizes[groups, places]
    groups, here = groups[here[:, :1].any(1)], here[here[:, :1].any(1)]
    if not len(groups):
        return
    width = int((here > 0).sum(1).max())
    here, places = here[:, :width], slice(places.start, places.start + width)
    height = here[:, 0].max()
    area = len(groups) * width * height
    cost, parts = min(_across(here, groups, places), *_down(here, groups, places), key=lambda one: one[0])
    if area - cost <= spare * height:
        if area <= most or len(groups) * width == 1:
            yield np.sort(groups), places
            return
        parts = _halves(groups, places)
    for some, range_ in parts:
        yield from _cut(sizes, some, range_, most, spare)


Parts = tuple[tuple[Sizes, slice], tuple[Sizes, slice]]


def _down(here: Sizes, groups: Sizes, places: slice) -> Iterator[tuple[float, Parts]]:
    """The best cut between groups, ordered by their largest size, and ordered by how many they have."""
    height, width = here[:, 0], (here > 0).sum(1)
    for first, second in ((height, width), (width, height)):
        order = np.lexsort((-second, -first))
        tallest, widest = (np.maximum.accumulate(each[order][::-1])[::-1] for each in (height, width))
        top = np.arange(1, len(groups))
        cost = top * tallest[0] * widest[0] + (len(groups) - top) * tallest[1:] * widest[1:]
        if len(cost):
            at = int(cost.argmin())
            yield float(cost[at]), ((groups[order[: at + 1]], places), (groups[order[at + 1 :]], places))
    yield np.inf, ((groups, places), (groups, places))


def _across(here: Sizes, groups: Sizes, places: slice) -> tuple[float, Parts]:
    """The best cut between places: those to the right are smaller, and fewer groups have them."""
    tallest, have = here.max(0), (here > 0).sum(0)
    left = np.arange(1, here.shape[1])
    cost = left * len(groups) * tallest[0] + (here.shape[1] - left) * have[1:] * tallest[1:]
    if not len(cost):
        return np.inf, ((groups, places), (groups, places))
    at = places.start + int(cost.argmin()) + 1
    return float(cost.min()), ((groups, slice(places.start, at)), (groups, slice(at, places.stop)))


def _halves(groups: Sizes, places: slice) -> Parts:
    if len(groups) > 1:
        half = len(groups) // 2
        return (groups[:half], places), (groups[half:], places)
    half = (places.start + places.stop + 1) // 2
    return (groups, slice(places.start, half)), (groups, slice(half, places.stop))
