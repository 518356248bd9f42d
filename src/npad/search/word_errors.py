"""Word errors: the edit distance between two lists of words, of many pairs at once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Words = Sequence[str]
Counts = NDArray[np.int64]

MAX_CELLS = 1 << 22  # of the table's rows held at a time: 32 MiB


def word_errors(hypotheses: Sequence[Words], references: Sequence[Words]) -> Counts:
    """Return the fewest substitutions, deletions and insertions of words, for each pair.

    Args:
        hypotheses: what was recognised.
        references: what was said, in the same order.

    Returns:
        [pairs], the Levenshtein distances.
    """
    longest = max((len(words) for words in references), default=0)
    part = max(1, MAX_CELLS // (longest + 1))
    numbers: dict[str, int] = {}
    pieces = [
        _distances(
            _numbered(hypotheses[i : i + part], numbers, padding=-1),
            _numbered(references[i : i + part], numbers, padding=-2),
        )
        for i in range(0, len(references), part)
    ]
    return np.concatenate(pieces) if pieces else np.zeros(0, np.int64)


def _numbered(texts: Sequence[Words], numbers: dict[str, int], padding: int) -> Counts:
    """Return words as numbers [texts, longest], padded; each distinct text is read once."""
    places: dict[tuple[str, ...], int] = {}
    index = [places.setdefault(tuple(words), len(places)) for words in texts]
    table = np.full((len(places), max(map(len, texts), default=0)), padding, np.int64)
    for row, words in zip(table, places, strict=True):
        row[: len(words)] = [numbers.setdefault(word, len(numbers)) for word in words]
    return table[index]


def _distances(hypotheses: Counts, references: Counts) -> Counts:
    """Return the edit distances of padded rows [pairs, n] and [pairs, m]: Wagner and Fischer.

    A row of the table holds the distances of a hypothesis' first i words to every prefix of its
    reference. Insertions, which depend on the row itself, are a running minimum of the distances
    less their column.
    """
    lengths, sizes = (hypotheses >= 0).sum(1), (references >= 0).sum(1)
    columns = np.arange(references.shape[1] + 1)
    row = np.tile(columns, (len(references), 1))
    pairs = np.arange(len(references))
    distances: Counts = row[pairs, sizes]  # of empty hypotheses
    for i in range(hypotheses.shape[1]):
        differs = hypotheses[:, i, None] != references
        following = row + 1
        following[:, 1:] = np.minimum(following[:, 1:], row[:, :-1] + differs)
        row = np.minimum.accumulate(following - columns, axis=1) + columns
        distances = np.where(lengths == i + 1, row[pairs, sizes], distances)
    return distances
