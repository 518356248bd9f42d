"""Prefixes that hypotheses of one sentence share, so that a model reads each once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

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
    order = side_by_side(content)
    content, reads = content[order], reads.ravel()[order]
    differs = np.ones(content.shape, dtype=bool)  # from the row above, here or before
    differs[1:] = np.logical_or.accumulate(content[1:] != content[:-1], axis=1)
    kind, sentence = differs[:, 1:].cumsum(0), content[:, 0]
    before = np.zeros_like(sentence)  # of each row, the prefix one symbol shorter
    for t in range(length):
        rows = np.flatnonzero(reads > t)
        opens = np.ones(len(rows), dtype=bool)
        opens[1:] = kind[rows[1:], t] != kind[rows[:-1], t]
        head = rows[opens]
        owner = sentence[head]
        place = np.arange(len(head)) - np.searchsorted(owner, owner)
        first, parents = np.zeros((2, sentences, int(place.max(initial=0)) + 1), dtype=np.int64)
        first[owner, place], parents[owner, place] = order[head] % n, before[head]
        before = np.zeros_like(before)
        before[rows] = place[opens.cumsum() - 1]
        which = np.empty_like(before)
        which[order] = before
        yield Prefixes(which.reshape(sentences, n), first, parents)


class Reading(NamedTuple):
    """What to read, step by step: a row for each prefix, those of a sentence together and as many for every one."""

    rows: list[int]  # [T], at each step
    parents: Rows  # [Σ rows], the row of the step before that each one continues; at first the sentence itself
    symbols: Rows  # [Σ rows], what each one reads
    which: Rows  # [sentences · n, T], the place among all rows of what each hypothesis reads


def reading(symbols: Rows, reads: Rows) -> Reading:
    """How to read hypotheses [sentences, n, T], of each the first `reads` symbols, every prefix once."""
    sentences = np.arange(len(symbols))[:, None]
    rows: list[int] = []
    parents, read, which, width = [], [], [], 1
    for t, one in enumerate(prefixes(symbols, reads)):
        parents.append((sentences * width + one.parents).ravel())
        read.append(symbols[sentences, one.first, t].ravel())
        width = one.first.shape[1]
        which.append((sum(rows) + sentences * width + one.which).ravel())
        rows.append(len(sentences) * width)
    return Reading(rows, np.concatenate(parents), np.concatenate(read), np.stack(which, 1))


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
