"""sacrebleu's chrF."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from npad.metrics.metric import FloatArray, Metric, Reference, reference_texts

ORDER = 6  # longest character n-gram
BETA = 2  # recall counts β² times as much as precision


@dataclass(frozen=True)
class Chrf(Metric):
    """chrF, equal to sacrebleu's corpus score; of several references, the nearest counts.

    Statistics are [20]: n-grams of the output, of the reference, and common ones, for n = 1 to 6;
    letters of the output and of the reference.
    """

    name, title = "chrf", "chrF"

    def statistics(
        self, texts: Sequence[str], references: Sequence[Reference], log_probs: Sequence[float] = ()
    ) -> FloatArray:
        rows = np.zeros((len(texts), 3 * ORDER + 2))
        for row, text, reference in zip(rows, texts, references, strict=True):
            counted = np.array([_count(text, each) for each in reference_texts(reference)])
            row[:] = counted[self.scores(counted).argmax() if len(counted) > 1 else 0]
        return rows

    def scores(self, sums: FloatArray) -> FloatArray:
        counts = np.asarray(sums, np.float64)[..., : 3 * ORDER]
        output, reference, common = np.moveaxis(counts.reshape(*counts.shape[:-1], 3, ORDER), -2, 0)
        counted = (output > 0) & (reference > 0)  # orders that both sides have
        orders = np.maximum(counted.sum(-1), 1)
        precision = (counted * common / np.maximum(output, 1)).sum(-1) / orders
        recall = (counted * common / np.maximum(reference, 1)).sum(-1) / orders
        weighted = BETA**2 * precision + recall
        with np.errstate(invalid="ignore"):
            score = (1 + BETA**2) * precision * recall / weighted
        return np.where(weighted > 0, 100 * score, 0.0)

    def signature(self) -> str:
        from sacrebleu.metrics.chrf import CHRF

        metric = CHRF()
        metric.num_refs = 1
        return str(metric.get_signature())


@lru_cache(maxsize=1 << 12)  # several signals compare the same texts
def _count(text: str, reference: str) -> tuple[int, ...]:
    output, expected = _ngrams(text), _ngrams(reference)
    common = [(a & b).total() for a, b in zip(output, expected, strict=True)]
    totals = [ngrams.total() for ngrams in output]
    # As sacrebleu: an order that the reference does not have is not counted in the output.
    in_output = [n if ngrams else 0 for n, ngrams in zip(totals, expected, strict=True)]
    in_reference = [ngrams.total() for ngrams in expected]
    return (*in_output, *in_reference, *common, totals[0], in_reference[0])


@lru_cache(maxsize=1 << 12)  # a text is compared with many others
def _ngrams(text: str) -> tuple[Counter[str], ...]:
    letters = "".join(text.split())
    return tuple(
        Counter(letters[i : i + n] for i in range(len(letters) - n + 1))
        for n in range(1, ORDER + 1)
    )
