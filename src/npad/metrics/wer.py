"""Word error rate: the edit distance between two lists of words, of many pairs at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from npad.metrics.metric import FloatArray, Metric, Reference, reference_texts
from npad.text.english import spoken_words

Words = Sequence[str]
Counts = NDArray[np.int64]

MAX_CELLS = 1 << 22  # of the table's rows held at a time: 32 MiB


@dataclass(frozen=True)
class Wer(Metric):
    """Word errors over words of the references, in per cent; of several references, the best one.

    Statistics are [3]: errors, words of the output, words of the reference.

    Attributes:
        words: the words of a text; those of normalised English by default.
    """

    words: Callable[[str], Words] = spoken_words

    name, title, unit = "wer", "WER", "%"
    description = "word errors over words of the references, of normalised English"
    lower_is_better = True
    best = 0.0
    utility = "wer"

    @property
    def min_span(self) -> float:
        return 1.0

    def statistics(
        self, texts: Sequence[str], references: Sequence[Reference], log_probs: Sequence[float] = ()
    ) -> FloatArray:
        found = [self.words(text) for text in texts]
        said = [list(map(self.words, reference_texts(each))) for each in references]
        places = [i for i, several in enumerate(said) for _ in several]
        flat = [words for several in said for words in several]
        errors = word_errors([found[i] for i in places], flat)
        rows = [
            (count, len(found[i]), len(words))
            for i, count, words in zip(places, errors.tolist(), flat, strict=True)
        ]
        if len(rows) > len(texts):
            best: dict[int, tuple[int, int, int]] = {}
            for i, row in zip(places, rows, strict=True):
                best[i] = min(best.get(i, row), row, key=_rate)
            rows = list(best.values())
        return np.array(rows, np.float64).reshape(-1, 3)

    def scores(self, sums: FloatArray) -> FloatArray:
        rate: FloatArray = 100 * sums[..., 0] / np.maximum(sums[..., 2], 1)
        return rate

    def of_tokens(self) -> Metric:
        return replace(self, words=str.split)


def _rate(row: tuple[int, int, int]) -> float:
    errors, _, words = row
    return errors / max(words, 1)


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
