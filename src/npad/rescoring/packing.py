"""Pack ragged hypotheses into rectangles with little padding.

Pure NumPy.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from npad.search.runs import IntArray


class Rectangle(NamedTuple):
    """A set of groups, and a range of places in them."""

    groups: IntArray
    places: slice


Cut = tuple[Rectangle, Rectangle]


def rectangles(
    sizes: IntArray, max_area: float = np.inf, step_cost: int = 8
) -> Iterator[Rectangle]:
    """Cut sizes [groups, n], each row in descending order, into rectangles.

    Every size above 0 is in exactly one rectangle. The area of a rectangle is groups · places · its
    largest size.

    Args:
        sizes: [groups, n], the length of each entry; 0 if empty.
        max_area: a rectangle of more than one entry is cut if its area exceeds this.
        step_cost: overhead of one step of a pass, in entries. A cut must save more area than the
            steps of the additional pass cost.
    """
    return _cut(
        sizes, Rectangle(np.arange(len(sizes)), slice(0, sizes.shape[1])), max_area, step_cost
    )


def _cut(
    sizes: IntArray, rectangle: Rectangle, max_area: float, step_cost: int
) -> Iterator[Rectangle]:
    groups, places = rectangle
    inside = sizes[groups, places]
    nonempty = inside[:, :1].any(1)
    groups, inside = groups[nonempty], inside[nonempty]
    if not len(groups):
        return
    width = int((inside > 0).sum(1).max())
    inside = inside[:, :width]
    rectangle = Rectangle(groups, slice(places.start, places.start + width))
    height = inside[:, 0].max()
    area = len(groups) * width * height
    options = [*_cut_between_places(inside, rectangle), *_cuts_between_groups(inside, rectangle)]
    cost, cut = min(options, key=lambda option: option[0], default=(np.inf, None))
    if cut is None or area - cost <= step_cost * height:
        if area <= max_area or len(groups) * width == 1:
            yield Rectangle(np.sort(groups), rectangle.places)
            return
        cut = _halves(rectangle)
    for part in cut:
        yield from _cut(sizes, part, max_area, step_cost)


def _cuts_between_groups(inside: IntArray, rectangle: Rectangle) -> Iterator[tuple[float, Cut]]:
    """Yield the best cut of groups ordered by largest size, and of groups ordered by count."""
    groups, places = rectangle
    height, width = inside[:, 0], (inside > 0).sum(1)
    top_rows = np.arange(1, len(groups))
    if not len(top_rows):
        return
    for major, minor in ((height, width), (width, height)):
        order = np.lexsort((-minor, -major))
        tallest, widest = (
            np.maximum.accumulate(extent[order][::-1])[::-1] for extent in (height, width)
        )
        top = top_rows * tallest[0] * widest[0]
        bottom = (len(groups) - top_rows) * tallest[1:] * widest[1:]
        at = int((top + bottom).argmin())
        cut = (
            Rectangle(groups[order[: at + 1]], places),
            Rectangle(groups[order[at + 1 :]], places),
        )
        yield float((top + bottom)[at]), cut


def _cut_between_places(inside: IntArray, rectangle: Rectangle) -> Iterator[tuple[float, Cut]]:
    """Yield the best cut between places: to the right, sizes are smaller and groups fewer."""
    groups, places = rectangle
    tallest, count = inside.max(0), (inside > 0).sum(0)
    left = np.arange(1, inside.shape[1])
    if not len(left):
        return
    cost = left * len(groups) * tallest[0] + (inside.shape[1] - left) * count[1:] * tallest[1:]
    at = places.start + int(cost.argmin()) + 1
    yield (
        float(cost.min()),
        (
            Rectangle(groups, slice(places.start, at)),
            Rectangle(groups, slice(at, places.stop)),
        ),
    )


def _halves(rectangle: Rectangle) -> Cut:
    groups, places = rectangle
    if len(groups) > 1:
        half = len(groups) // 2
        return Rectangle(groups[:half], places), Rectangle(groups[half:], places)
    half = (places.start + places.stop + 1) // 2
    left, right = slice(places.start, half), slice(half, places.stop)
    return Rectangle(groups, left), Rectangle(groups, right)
