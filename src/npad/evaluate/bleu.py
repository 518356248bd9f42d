"""sacrebleu's BLEU of many systems on one test set: a sentence's n-grams are counted once for each text it became."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Counts = NDArray[
    np.int64
]  # [..., 10]: matches of 1 to 4 words, n-grams of 1 to 4 words, words of output, of reference


class Bleu:
    """BLEU against given references; equal to sacrebleu's corpus score with its defaults."""

    def __init__(self, references: Sequence[str]) -> None:
        from sacrebleu.metrics.bleu import BLEU

        self.references = references
        self.metric = BLEU(
            effective_order=True
        )  # which changes no count, and is what a sentence asks for
        self.known: dict[tuple[int, str], list[int]] = {}

    def counts(self, outputs: Sequence[str]) -> Counts:
        """[sentences, 10]."""
        return np.array([self._count(i, text) for i, text in enumerate(outputs)], dtype=np.int64)

    def _count(self, i: int, text: str) -> list[int]:
        if (i, text) not in self.known:
            score = self.metric.sentence_score(text, [self.references[i]])
            self.known[i, text] = [*score.counts, *score.totals, score.sys_len, score.ref_len]
        return self.known[i, text]

    @staticmethod
    def score(counts: Counts) -> float:
        """BLEU of some sentences together, of their counts added up [10]."""
        from sacrebleu.metrics.bleu import BLEU

        matches, totals, (output, reference) = (
            counts[:4].tolist(),
            counts[4:8].tolist(),
            counts[8:].tolist(),
        )
        return float(
            BLEU.compute_bleu(matches, totals, output, reference, smooth_method="exp").score
        )

    @staticmethod
    def length_ratio(counts: Counts) -> float:
        """Words of output over words of reference, of counts added up [10]."""
        return float(counts[8] / max(1, counts[9]))
