"""Algorithms as one would write them with lists: slow, and easy to believe."""

from __future__ import annotations

import math

from npad.models.table import TableModel


def plain_beam(
    model: TableModel,
    width: int,
    finish: str,
    nbest: int,
    max_length: int,
    penalty=lambda rank: 0.0,
):
    """Beam search of one sentence, written with lists; returns (tokens, log_prob, finished)."""
    eos, table = model.special.eos, model.tables[0]
    ends_at_once = [float(i == eos) for i in range(model.vocabulary)]
    live, ended = [((), 0.0)], []
    for _ in range(max_length):
        children = []
        for history, score in live:
            p = table.get(history, ends_at_once)
            ranked = sorted(
                ((score + math.log(x), token) for token, x in enumerate(p) if x > 0), reverse=True
            )
            children += [
                (s - penalty(k), s, (*history, token)) for k, (s, token) in enumerate(ranked, 1)
            ]
        children.sort(reverse=True)
        children = [(history, score) for _, score, history in children]
        if finish == "shrink":
            taken = children[: width - len(ended)]
        elif finish == "compete":
            everyone = sorted(
                [(s, 1, h) for h, s in ended] + [(s, 0, h) for h, s in children], reverse=True
            )[:width]
            ended = [(h, s) for s, old, h in everyone if old]
            taken = [(h, s) for s, old, h in everyone if not old]
        else:
            ended += [(h, s) for h, s in children[:width] if h[-1] == eos]
            ended = sorted(ended, key=lambda one: -one[1])[:width]
            taken = [(h, s) for h, s in children if h[-1] != eos][:width]
        ended += [(h, s) for h, s in taken if h[-1] == eos]
        live = [(h, s) for h, s in taken if h[-1] != eos]
        if not live:
            break
    answers = [(h[:-1], s, True) for h, s in sorted(ended, key=lambda one: -one[1])]
    answers += [(h, s, False) for h, s in sorted(live, key=lambda one: -one[1])]
    return answers[:nbest]


def plain_rectangles(sizes, max_area, step_cost, groups=None, places=None):
    """Cut sizes, lists in descending order, into (groups, places) as `rectangles` does."""
    groups = range(len(sizes)) if groups is None else groups
    start, stop = (0, len(sizes[0])) if places is None else places
    groups = [g for g in groups if sizes[g][start] > 0]
    if not groups:
        return []
    stop = start + max(count(sizes[g][start:stop]) for g in groups)
    height = max(sizes[g][start] for g in groups)
    area = len(groups) * (stop - start) * height
    cuts = plain_cuts(sizes, groups, start, stop)
    cost, cut = min(cuts, key=lambda option: option[0], default=(math.inf, None))
    if cut is None or area - cost <= step_cost * height:
        if area <= max_area or len(groups) * (stop - start) == 1:
            return [(sorted(groups), (start, stop))]
        half = len(groups) // 2
        middle = (start + stop + 1) // 2
        cut = [(groups[:half], (start, stop)), (groups[half:], (start, stop))]
        if len(groups) == 1:
            cut = [(groups, (start, middle)), (groups, (middle, stop))]
    parts = [plain_rectangles(sizes, max_area, step_cost, *part) for part in cut]
    return [rectangle for part in parts for rectangle in part]


def plain_cuts(sizes, groups, start, stop):
    """Every cut between places and between groups, by either order, with the area it leaves."""

    def extent(rows, first, last):
        """The smallest rectangle around sizes[rows][first:last], (height, width)."""
        tallest = max(max(sizes[g][first:last]) for g in rows)
        return tallest, max(count(sizes[g][first:last]) for g in rows)

    for at in range(start + 1, stop):
        going_on = sum(sizes[g][at] > 0 for g in groups)
        left = (at - start) * len(groups) * max(sizes[g][start] for g in groups)
        right = (stop - at) * going_on * max(sizes[g][at] for g in groups)
        yield left + right, [(groups, (start, at)), (groups, (at, stop))]
    for tall_first in (True, False):

        def order(g, tall_first=tall_first):
            height, width = extent([g], start, stop)
            return (-height, -width) if tall_first else (-width, -height)

        ordered = sorted(groups, key=order)
        for at in range(1, len(groups)):
            top, bottom = ordered[:at], ordered[at:]
            tall, wide = extent(ordered, start, stop)
            below, narrow = extent(bottom, start, stop)
            cost = at * tall * wide + len(bottom) * below * narrow
            yield cost, [(top, (start, stop)), (bottom, (start, stop))]


def count(sizes):
    return sum(size > 0 for size in sizes)


def edits(found: list[str], expected: list[str]) -> int:
    """Substitutions, insertions and deletions from one list of words to another."""
    row = list(range(len(expected) + 1))
    for i, word in enumerate(found, 1):
        before, row = row, [i]
        for j, other in enumerate(expected, 1):
            row.append(min(before[j] + 1, row[-1] + 1, before[j - 1] + (word != other)))
    return row[-1]
