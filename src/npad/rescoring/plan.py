"""Plan which hypotheses are re-scored together, in NumPy.

Either every distinct prefix is read once, or ragged hypotheses are packed into rectangles with
little padding.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

import numpy as np

from npad.rows import IntArray, argsort_rows, rank_in_run, run_starts


class Prefixes(NamedTuple):
    """The distinct prefixes of one length, numbered within their sentence, sentence by sentence."""

    owner: IntArray  # [prefixes], the sentence of each prefix
    place: IntArray  # [prefixes], its number within the sentence
    first: IntArray  # [prefixes], a hypothesis that starts with it
    parents: IntArray  # [prefixes], the number of the prefix that is one token shorter
    prefix_of: IntArray  # [non-empty hypotheses], the prefix of each; its last one if it has ended


def prefixes(tokens: IntArray, reads: IntArray) -> Iterator[Prefixes]:
    """Yield the distinct prefixes of hypotheses, length by length.

    Args:
        tokens: [sentences, n, T], the input tokens of each hypothesis.
        reads: [sentences, n], how many of them count; 0 for an empty hypothesis.
    """
    sentences, n, length = tokens.shape
    sentence_of = np.repeat(np.arange(sentences), n)
    content = np.column_stack([sentence_of, tokens.reshape(sentences * n, length)])
    reading = np.flatnonzero(reads > 0)
    by_content = argsort_rows(content[reading])
    order, inverse = reading[by_content], by_content.argsort()
    content, reads = content[order], reads.ravel()[order]
    differs = np.ones(content.shape, dtype=bool)  # from the row above, up to this column
    differs[1:] = np.logical_or.accumulate(content[1:] != content[:-1], axis=1)
    starts_prefix = np.ascontiguousarray(differs[:, 1:].T)
    sentence, hypothesis = content[:, 0], order % n
    parent = np.zeros_like(sentence)  # of each row, its prefix one token shorter
    for t in range(length):
        rows = np.flatnonzero(reads > t)
        starts = run_starts(starts_prefix[t].cumsum(dtype=np.int32)[rows])
        heads = rows[starts]
        owner = sentence[heads]
        place, parents = rank_in_run(owner), parent[heads]
        parent[rows] = place[starts.cumsum() - 1]
        yield Prefixes(owner, place, hypothesis[heads], parents, parent[inverse])


class ReadStep(NamedTuple):
    """The rows of one step: one per prefix, in groups of `group_size` rows of the same sentence.

    The last group of a sentence is filled up with idle rows.
    """

    group_size: int  # rows per group
    owners: IntArray  # [groups], the sentence of each group
    parents: IntArray  # [rows], the row of the previous step; at the first step, the sentence
    tokens: IntArray  # [rows], the token that each row reads
    row_of: IntArray  # [prefixes], the row of each
    prefix_of: IntArray  # [non-empty hypotheses], the prefix of each

    @property
    def rows(self) -> int:
        return len(self.parents)

    def padded(self, rows: int) -> ReadStep:
        """Return the step with idle groups added, so that it has so many rows."""
        more = (0, rows - self.rows)
        owners = np.pad(self.owners, (0, more[1] // self.group_size))
        tokens = np.pad(self.tokens, more, mode="edge")
        return self._replace(owners=owners, parents=np.pad(self.parents, more), tokens=tokens)


def read_steps(tokens: IntArray, reads: IntArray, window: int = 1) -> Iterator[ReadStep]:
    """Yield the rows of each step, every distinct prefix once.

    Args:
        tokens: [sentences, n, T], the input tokens of each hypothesis.
        reads: [sentences, n], how many of them count; 0 for an empty hypothesis.
        window: consecutive steps that have the same group size.
    """
    sentences = np.arange(len(tokens))
    by_step = np.ascontiguousarray(tokens.transpose(2, 0, 1))
    previous_first = sentences  # each sentence's first row in the previous step
    owner_of = np.nonzero(reads > 0)[0]  # the sentence of each non-empty hypothesis
    steps = prefixes(tokens, reads)
    t = 0
    while together := list(islice(steps, window)):
        widths = [np.bincount(step.owner, minlength=len(sentences)) for step in together]
        size = max(group_size(width.sum() / np.count_nonzero(width)) for width in widths)
        for step, width in zip(together, widths, strict=True):
            groups = -(-width // size)
            first = size * (groups.cumsum() - groups)  # each sentence's first row
            row_of, rows = first[step.owner] + step.place, size * int(groups.sum())
            read = by_step[t, step.owner, step.first]
            parents, row_tokens = np.zeros(rows, dtype=np.int64), np.full(rows, read[0])
            parents[row_of], row_tokens[row_of] = previous_first[step.owner] + step.parents, read
            before = width.cumsum() - width  # prefixes of the sentences before
            prefix_of = np.minimum(before[owner_of] + step.prefix_of, len(row_of) - 1)
            owners = np.repeat(sentences, groups)
            yield ReadStep(size, owners, parents, row_tokens, row_of, prefix_of)
            previous_first = first
            t += 1


def group_size(prefixes_per_sentence: float) -> int:
    """Return how many prefixes of a sentence to read as one group.

    A larger group fetches the sentence's memory less often; a group that is not full has idle rows.
    """
    width = prefixes_per_sentence
    return 1 if width < 2 else 2 if width < 4 else 4 if width < 16 else 8


class Span(NamedTuple):
    """A run of consecutive entries."""

    offset: int  # the sum of the sizes before it
    entries: slice


def spans(sizes: list[int], limit: int) -> Iterator[Span]:
    """Split into consecutive runs whose sizes sum to at most `limit`, or a single larger entry."""
    start = offset = total = 0
    for stop, size in enumerate(sizes):
        if stop > start and total + size > limit:
            yield Span(offset, slice(start, stop))
            start, offset, total = stop, offset + total, 0
        total += size
    if start < len(sizes):
        yield Span(offset, slice(start, len(sizes)))


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
        (Rectangle(groups, slice(places.start, at)), Rectangle(groups, slice(at, places.stop))),
    )


def _halves(rectangle: Rectangle) -> Cut:
    groups, places = rectangle
    if len(groups) > 1:
        half = len(groups) // 2
        return Rectangle(groups[:half], places), Rectangle(groups[half:], places)
    half = (places.start + places.stop + 1) // 2
    left, right = slice(places.start, half), slice(half, places.stop)
    return Rectangle(groups, left), Rectangle(groups, right)
