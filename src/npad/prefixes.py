"""Prefixes that hypotheses of one sentence share, so that a model reads each once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from npad.alike import Rows, side_by_side


class Prefixes(NamedTuple):
    """The distinct prefixes of one length, `width` a sentence; a sentence with fewer fills up with anything."""

    which: Rows  # [sentences, n], the prefix of each hypothesis, numbered within its sentence; 0 where it has ended
    first: Rows  # [sentences, width], a hypothesis that begins so
    parents: Rows  # [sentences, width], the prefix one symbol shorter


def prefixes(symbols: Rows, reads: Rows) -> Iterator[Prefixes]:
    """Of hypotheses [sentences, n, T], of each the first `reads` [sentences, n] symbols: by their length."""
    sentences, n, length = symbols.shape
    content = np.column_stack([np.repeat(np.arange(sentences), n), symbols.reshape(sentences * n, length)])
    there = np.flatnonzero(reads > 0)
    order = there[side_by_side(content[there])]
    content, reads = content[order], reads.ravel()[order]
    differs = np.ones(content.shape, dtype=bool)  # from the row above, here or before
    differs[1:] = np.logical_or.accumulate(content[1:] != content[:-1], axis=1)
    opening, sentence, mine = np.ascontiguousarray(differs[:, 1:].T), content[:, 0], order % n
    before = np.zeros_like(sentence)  # of each row, the prefix one symbol shorter
    for t in range(length):
        rows = np.flatnonzero(reads > t)
        kind = opening[t].cumsum(dtype=np.int32)[rows]
        opens = _starts(kind)
        head = rows[opens]
        owner = sentence[head]
        place = np.arange(len(head))
        place -= np.maximum.accumulate(np.where(_starts(owner), place, 0))
        first, parents = np.zeros((2, sentences, int(place.max(initial=0)) + 1), dtype=np.int64)
        first[owner, place], parents[owner, place] = mine[head], before[head]
        before = np.zeros_like(before)
        before[rows] = place[opens.cumsum() - 1]
        which = np.zeros(sentences * n, dtype=np.int64)
        which[order] = before
        yield Prefixes(which.reshape(sentences, n), first, parents)


def _starts(x: NDArray[Any]) -> NDArray[np.bool_]:
    """Where a run of equals starts."""
    found = np.ones(len(x), dtype=bool)
    np.not_equal(x[1:], x[:-1], out=found[1:])
    return found


class Reading(NamedTuple):
    """What to read at one step: a row for each prefix, those of a sentence together and as many for every one."""

    parents: Rows  # [rows], the row of the step before that each one continues; at first the sentence itself
    symbols: Rows  # [rows], what each one reads
    which: Rows  # [sentences · n], the row of each hypothesis


def reading(symbols: Rows, reads: Rows) -> Iterator[Reading]:
    """How to read hypotheses [sentences, n, T], of each the first `reads` symbols, step by step, every prefix once."""
    sentences, width, at = np.arange(len(symbols))[:, None], 1, np.ascontiguousarray(symbols.transpose(2, 0, 1))
    for t, one in enumerate(prefixes(symbols, reads)):
        parents, width = sentences * width + one.parents, one.first.shape[1]
        which = sentences * width + one.which
        yield Reading(parents.ravel(), at[t, sentences, one.first].ravel(), which.ravel())


def together(steps: Iterator[Reading], least: int) -> Iterator[list[Reading]]:
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
