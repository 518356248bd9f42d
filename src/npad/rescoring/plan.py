"""Prefixes that hypotheses of one sentence share, so that a model reads each once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from npad.search.runs import Rows, place_in_run, side_by_side, starts


class Prefixes(NamedTuple):
    """The distinct prefixes of one length, those of a sentence together and numbered within it."""

    owner: Rows  # [prefixes], the sentence of each, from the first
    place: Rows  # [prefixes], its number
    first: Rows  # [prefixes], a hypothesis that begins so
    parents: Rows  # [prefixes], the number of the one that is one symbol shorter
    which: Rows  # [hypotheses that read anything], the prefix of each; 0 where it has ended


def prefixes(symbols: Rows, reads: Rows) -> Iterator[Prefixes]:
    """Of hypotheses [sentences, n, T], of each the first `reads` [sentences, n] symbols: by their length."""
    sentences, n, length = symbols.shape
    content = np.column_stack([np.repeat(np.arange(sentences), n), symbols.reshape(sentences * n, length)])
    there = np.flatnonzero(reads > 0)
    turn = side_by_side(content[there])
    order, back = there[turn], turn.argsort()
    content, reads = content[order], reads.ravel()[order]
    differs = np.ones(content.shape, dtype=bool)  # from the row above, here or before
    differs[1:] = np.logical_or.accumulate(content[1:] != content[:-1], axis=1)
    opening, sentence, mine = np.ascontiguousarray(differs[:, 1:].T), content[:, 0], order % n
    before = np.zeros_like(sentence)  # of each row, the prefix one symbol shorter
    for t in range(length):
        rows = np.flatnonzero(reads > t)
        opens = starts(opening[t].cumsum(dtype=np.int32)[rows])
        head = rows[opens]
        owner = sentence[head]
        place, parents = place_in_run(owner), before[head]
        before = np.zeros_like(before)
        before[rows] = place[opens.cumsum() - 1]
        yield Prefixes(owner, place, mine[head], parents, before[back])


class Reading(NamedTuple):
    """What to read at one step: a row for each prefix, in groups of `each` rows of one sentence, the last filled up."""

    each: int
    owner: Rows  # [groups], the sentence of each group
    parents: Rows  # [groups · each], the row of the step before that each one continues; at first the sentence itself
    symbols: Rows  # [groups · each], what each one reads
    which: Rows  # [hypotheses that read anything], the row of each


def reading(symbols: Rows, reads: Rows) -> Iterator[Reading]:
    """How to read hypotheses [sentences, n, T], of each the first `reads` symbols, step by step, every prefix once."""
    sentences, at = np.arange(len(symbols)), np.ascontiguousarray(symbols.transpose(2, 0, 1))
    before = sentences  # the first row of each sentence
    whose = np.nonzero(reads > 0)[0]  # the sentence of each hypothesis that reads anything
    for t, one in enumerate(prefixes(symbols, reads)):
        width = np.bincount(one.owner, minlength=len(sentences))
        each = together(len(one.owner) / np.count_nonzero(width))
        groups = -(-width // each)
        now = each * (groups.cumsum() - groups)
        row, size = now[one.owner] + one.place, each * int(groups.sum())
        read = at[t, one.owner, one.first]
        parents, said = np.zeros(size, dtype=np.int64), np.full(size, read[0])
        parents[row], said[row] = before[one.owner] + one.parents, read
        which = np.minimum(now[whose] + one.which, size - 1)
        yield Reading(each, np.repeat(sentences, groups), parents, said, which)
        before = now


def together(width: float) -> int:
    """How many prefixes of a sentence to read as one group, where sentences have so many on average.

    What belongs to the sentence is fetched once a group; of a group that is not full some rows are idle.
    """
    return 1 if width < 2 else 2 if width < 4 else 4 if width < 16 else 8


def batched(steps: Iterator[Reading], least: int) -> Iterator[list[Reading]]:
    """Steps that follow each other, as many as have so many rows together."""
    some: list[Reading] = []
    for one in steps:
        some.append(one)
        if sum(len(each.parents) for each in some) >= least:
            yield some
            some = []
    if some:
        yield some


def spans(sizes: list[int], most: int) -> Iterator[tuple[int, slice]]:
    """Neighbours whose sizes add up to at most so many, or one that is larger; and the sum of all before them."""
    start = before = size = 0
    for stop, each in enumerate(sizes):
        if stop > start and size + each > most:
            yield before, slice(start, stop)
            start, before, size = stop, before + size, 0
        size += each
    if start < len(sizes):
        yield before, slice(start, len(sizes))
