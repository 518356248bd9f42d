"""Successive halving (Jamieson & Talwalkar, 2016) for every budget at once.

All candidates are measured on a few sentences, those that stay on twice as many, and so on. A
candidate stays if it is in the better half of those that cost no more. So the cheap are not pushed
out by the expensive: the frontier of quality against cost survives, and a search with a smaller
budget does exactly what this one does below that budget.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple


class Outcome(NamedTuple):
    """What a candidate reached on some sentences."""

    quality: float  # higher is better
    cost: float  # per sentence


@dataclass(frozen=True)
class Rung:
    """One round: the candidates measured on the first `sentences`."""

    sentences: int
    points: Mapping[str, Outcome]
    survivors: Sequence[str]  # in the order of the points; of the last rung, all


def rung_sizes(sentences: int, first: int) -> list[int]:
    """Return the sizes of the rungs: halves of `sentences` rounded up, none below `first`."""
    sizes = [sentences]
    while (half := -(-sizes[0] // 2)) >= first and half < sizes[0]:
        sizes.insert(0, half)
    return sizes


def halve(
    ladders: Sequence[Sequence[str]],
    sizes: Sequence[int],
    measure: Callable[[str, int], Outcome],
    budget: float,
    plan: Callable[[Sequence[str], int], None] = lambda names, rung: None,
) -> list[Rung]:
    """Measure candidates on ever more sentences, and drop the worse ones.

    Costs are estimated on the first rung. A candidate over the budget is dropped there, and those
    above it on its ladder are not measured.

    Args:
        ladders: the candidates' names; within a ladder, cost rises.
        sizes: sentences of each rung, rising.
        measure: returns what a candidate reaches on the first n sentences.
        budget: the largest cost per sentence.
        plan: called before each rung with the candidates to measure and the rung's number.

    Returns:
        The rungs; without any rung if no candidate is within the budget.
    """
    plan([name for ladder in ladders for name in ladder], 0)
    first: dict[str, Outcome] = {}
    for ladder in ladders:
        for name in ladder:
            point = measure(name, sizes[0])
            if point.cost > budget:
                break
            first[name] = point
    if not first:
        return []
    costs = {name: point.cost for name, point in first.items()}
    rungs, points = list[Rung](), first
    for number, (size, following) in enumerate(pairwise(sizes), start=1):
        survivors = better_halves(points, costs)
        rungs.append(Rung(size, points, survivors))
        plan(survivors, number)
        points = {name: measure(name, following) for name in survivors}
    return [*rungs, Rung(sizes[-1], points, list(points))]


def better_halves(points: Mapping[str, Outcome], costs: Mapping[str, float]) -> list[str]:
    """Return the candidates that are in the better half of those that cost no more.

    Of equal quality, the cheaper one is better; of equal quality and cost, the first.
    """
    order = {name: i for i, name in enumerate(points)}

    def rank(name: str) -> tuple[float, float, int]:
        return -points[name].quality, costs[name], order[name]

    def stays(name: str) -> bool:
        peers = [other for other in points if costs[other] <= costs[name]]
        better = sum(rank(other) < rank(name) for other in peers)
        return better < (len(peers) + 1) // 2

    return [name for name in points if stays(name)]


def frontier(points: Mapping[str, Outcome]) -> list[str]:
    """Return the candidates that none beats at the same cost or less, cheapest first."""
    best, found = float("-inf"), []
    for name in sorted(points, key=lambda name: (points[name].cost, -points[name].quality)):
        if points[name].quality > best:
            best = points[name].quality
            found.append(name)
    return found
