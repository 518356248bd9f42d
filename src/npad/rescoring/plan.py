"""Plan the rows of each re-scoring step so that every distinct prefix is read once.

Pure NumPy.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

import numpy as np

from npad.search.runs import IntArray, argsort_rows, rank_in_run, run_starts


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
