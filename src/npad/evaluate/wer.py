"""Word error rate: word errors over the words that were said, with paired bootstrap."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from npad.evaluate.bootstrap import Difference, interval
from npad.search.word_errors import Counts, word_errors
from npad.text.english import spoken_words


def wer_counts(texts: Sequence[str], references: Sequence[str]) -> Counts:
    """Return word errors and words of the reference, [texts, 2], of normalised English texts."""
    said = [spoken_words(reference) for reference in references]
    errors = word_errors([spoken_words(text) for text in texts], said)
    return np.column_stack([errors, np.array([len(words) for words in said], np.int64)])


def wer(counts: Counts) -> float:
    """Return the word error rate in per cent, from counts [texts, 2]; above 100 is possible.

    Without a single word of reference it is infinite if there are errors, else 0.
    """
    errors, words = counts.sum(0).tolist()
    return 100 * errors / words if words else (np.inf if errors else 0.0)


def paired_wer(
    counts: Sequence[Counts],
    weights: Sequence[float] = (1, -1),
    samples: int = 1000,
    seed: int = 0,
) -> Difference:
    """Compare systems on the same recordings by word error rate.

    Args:
        counts: [texts, 2] of each system, from `wer_counts`.
        weights: of the systems in the sum; (0.5, 0.5, -1) compares a mean of two with a third.
        samples: number of resampled test sets.
        seed: of the resampling.
    """
    n = len(counts[0])
    drawn = np.random.default_rng(seed).multinomial(n, np.full(n, 1 / n), size=samples)
    resampled: NDArray[np.float64] = np.zeros(samples)
    for weight, system in zip(weights, counts, strict=True):
        totals = drawn @ system  # [samples, 2]
        resampled += weight * 100 * totals[:, 0] / np.maximum(totals[:, 1], 1)
    value = sum(weight * wer(system) for weight, system in zip(weights, counts, strict=True))
    return Difference(float(value), *interval(resampled))
