"""sacrebleu's chrF."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

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


class Ngrams(NamedTuple):
    """The n-grams of a text, of one n."""

    total: int
    distinct: frozenset[str]
    repeated: dict[str, int]  # those that occur several times, and how often

    def common(self, other: Ngrams) -> int:
        """Return how many n-grams two texts share. Most occur once, so sets count them."""
        repeated = self.repeated.keys() & other.repeated.keys()
        more = sum(min(self.repeated[gram], other.repeated[gram]) - 1 for gram in repeated)
        return len(self.distinct & other.distinct) + more


@lru_cache(maxsize=1 << 12)  # several signals compare the same texts
def _count(text: str, reference: str) -> tuple[int, ...]:
    pairs = list(zip(_ngrams(text), _ngrams(reference), strict=True))
    # As sacrebleu: an order that the reference does not have is not counted in the output.
    in_output = [output.total if expected.total else 0 for output, expected in pairs]
    in_reference = [expected.total for _, expected in pairs]
    common = [output.common(expected) for output, expected in pairs]
    return (*in_output, *in_reference, *common, pairs[0][0].total, in_reference[0])


@lru_cache(maxsize=1 << 12)  # a text is compared with many others
def _ngrams(text: str) -> tuple[Ngrams, ...]:
    letters = "".join(text.split())
    grams, every = list(letters), []
    for n in range(1, ORDER + 1):
        if n > 1:
            grams = list(map(operator.add, grams, letters[n - 1 :]))
        distinct, repeated = frozenset(grams), {}
        if len(distinct) < len(grams):
            repeated = {gram: count for gram, count in Counter(grams).items() if count > 1}
        every.append(Ngrams(len(grams), distinct, repeated))
    return tuple(every)
