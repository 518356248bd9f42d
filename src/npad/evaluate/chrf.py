"""sacrebleu's chrF from counts per sentence, so that resampled test sets need no second pass."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

ORDER = 6  # longest character n-gram
BETA = 2  # recall counts β² times as much as precision

Counts = NDArray[np.int64]  # [..., 18]: n-grams of the output, of the reference, and common ones


def chrf_counts(texts: Sequence[str], references: Sequence[str]) -> Counts:
    """Return the n-gram counts of each text against its reference, [texts, 18]."""
    rows = [_count(*pair) for pair in zip(texts, references, strict=True)]
    return np.array(rows, dtype=np.int64).reshape(-1, 3 * ORDER)


def chrf(counts: NDArray[np.float64] | Counts) -> NDArray[np.float64]:
    """Return the chrF [...] of test sets from their summed counts [..., 18]."""
    output, reference, common = np.moveaxis(
        np.asarray(counts, np.float64).reshape(*counts.shape[:-1], 3, ORDER), -2, 0
    )
    counted = (output > 0) & (reference > 0)  # orders that both sides have
    orders = np.maximum(counted.sum(-1), 1)
    precision = (counted * common / np.maximum(output, 1)).sum(-1) / orders
    recall = (counted * common / np.maximum(reference, 1)).sum(-1) / orders
    weighted = BETA**2 * precision + recall
    with np.errstate(invalid="ignore"):
        score = 100 * (1 + BETA**2) * precision * recall / weighted
    return np.where(weighted > 0, score, 0.0)


def _count(text: str, reference: str) -> list[int]:
    output, reference_ngrams = _ngrams(text), _ngrams(reference)
    common = [(a & b).total() for a, b in zip(output, reference_ngrams, strict=True)]
    in_output = [a.total() if b else 0 for a, b in zip(output, reference_ngrams, strict=True)]
    return [*in_output, *(ngrams.total() for ngrams in reference_ngrams), *common]


def _ngrams(text: str) -> list[Counter[str]]:
    letters = "".join(text.split())
    return [
        Counter(letters[i : i + n] for i in range(len(letters) - n + 1))
        for n in range(1, ORDER + 1)
    ]
