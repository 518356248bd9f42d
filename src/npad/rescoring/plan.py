"""The plan of re-scoring: which rows to read at each step so that every distinct prefix of a
sentence is read once. Pure NumPy.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from npad.search.runs import IntArray, argsort_rows, rank_in_run, run_starts


class Prefixes(NamedTuple):
    """The distinct prefixes of one length, numbered within their sentence, sentence by sentence."""

    owner: IntArray  # [prefixes], the sentence of each
    place: IntArray  # [prefixes], its number within the sentence
    first: IntArray  # [prefixes], a hypothesis that begins with it
    parents: IntArray  # [prefixes], the number of the prefix that is one token shorter
    prefix_of: IntArray  # [hypotheses that read anything], the prefix of each; 0 if it has ended


def prefixes(tokens: IntArray, reads: IntArray) -> Iterator[Prefixes]:
    """Yield the distinct prefixes of hypotheses, length by length.

    Args:
        tokens: [sentences, n, T], what each hypothesis reads.
        reads: [sentences, n], how many of them it reads.
    """
    sentences, n, length = tokens.shape
    sentence_of = np.repeat(np.arange(sentences), n)
    content = np.column_stack([sentence_of, tokens.reshape(sentences * n, length)])
    reading = np.flatnonzero(reads > 0)
    by_content = argsort_rows(content[reading])
    order, inverse = reading[by_content], by_content.argsort()
    content, reads = content[order], reads.ravel()[order]
    differs = np.ones(content.shape, dtype=bool)  # from the row above, in this column or before
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
        parent = np.zeros_like(parent)
        parent[rows] = place[starts.cumsum() - 1]
        yield Prefixes(owner, place, hypothesis[heads], parents, parent[inverse])


class ReadStep(NamedTuple):
    """What to read at one step: a row for each prefix, in groups of `each` rows of one sentence.

    The last group of a sentence is filled up with idle rows.
    """

    each: int  # rows of a group
    owners: IntArray  # [groups], the sentence of each group
    parents: IntArray  # [rows], the row of the step before that each continues; at first a sentence
    tokens: IntArray  # [rows], what each row reads
    row_of: IntArray  # [hypotheses that read anything], the row of each

    @property
    def rows(self) -> int:
        return len(self.parents)


def read_steps(tokens: IntArray, reads: IntArray) -> Iterator[ReadStep]:
    """Yield how to read hypotheses step by step, every distinct prefix once.

    Args:
        tokens: [sentences, n, T], what each hypothesis reads.
        reads: [sentences, n], how many of them it reads.
    """
    sentences = np.arange(len(tokens))
    by_step = np.ascontiguousarray(tokens.transpose(2, 0, 1))
    previous_first = sentences  # each sentence's first row of the step before
    owner_of = np.nonzero(reads > 0)[0]  # the sentence of each hypothesis that reads anything
    for t, step in enumerate(prefixes(tokens, reads)):
        width = np.bincount(step.owner, minlength=len(sentences))
        each = group_size(len(step.owner) / np.count_nonzero(width))
        groups = -(-width // each)
        first = each * (groups.cumsum() - groups)  # each sentence's first row
        row, size = first[step.owner] + step.place, each * int(groups.sum())
        read = by_step[t, step.owner, step.first]
        parents, row_tokens = np.zeros(size, dtype=np.int64), np.full(size, read[0])
        parents[row], row_tokens[row] = previous_first[step.owner] + step.parents, read
        row_of = np.minimum(first[owner_of] + step.prefix_of, size - 1)
        yield ReadStep(each, np.repeat(sentences, groups), parents, row_tokens, row_of)
        previous_first = first


def group_size(prefixes_per_sentence: float) -> int:
    """Return how many prefixes of a sentence to read as one group.

    What belongs to the sentence is fetched once a group; a group that is not full has idle rows.
    """
    width = prefixes_per_sentence
    return 1 if width < 2 else 2 if width < 4 else 4 if width < 16 else 8


def batches(steps: Iterator[ReadStep], min_rows: int) -> Iterator[list[ReadStep]]:
    """Group consecutive steps until each batch has at least `min_rows` rows."""
    batch: list[ReadStep] = []
    for step in steps:
        batch.append(step)
        if sum(each.rows for each in batch) >= min_rows:
            yield batch
            batch = []
    if batch:
        yield batch


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
