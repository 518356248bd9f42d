"""sacrebleu's BLEU of many systems on one test set, with n-gram counts cached by output."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

# [..., 10]: matching n-grams for n = 1 to 4, all n-grams for n = 1 to 4, output words, reference
# words
Counts = NDArray[np.int64]


class Bleu:
    """BLEU against fixed references; equal to sacrebleu's corpus score with its defaults."""

    def __init__(self, references: Sequence[str]) -> None:
        from sacrebleu.metrics.bleu import BLEU

        self.references = references
        # sacrebleu wants effective_order for single sentences; it changes no count.
        self.metric = BLEU(effective_order=True)
        self.cache: dict[tuple[int, str], list[int]] = {}

    def counts(self, outputs: Sequence[str]) -> Counts:
        """Return the counts of each output against its reference, [sentences, 10]."""
        return np.array([self._count(i, text) for i, text in enumerate(outputs)], dtype=np.int64)

    def _count(self, i: int, text: str) -> list[int]:
        return self._cached(i, text, [self.references[i]])

    def _cached(self, i: int, text: str, references: Sequence[str]) -> list[int]:
        if (i, text) not in self.cache:
            score = self.metric.sentence_score(text, references)
            self.cache[i, text] = [*score.counts, *score.totals, score.sys_len, score.ref_len]
        return self.cache[i, text]

    @staticmethod
    def score(counts: Counts) -> float:
        """Return the corpus BLEU from counts summed over sentences, [10]."""
        from sacrebleu.metrics.bleu import BLEU

        matches, totals = counts[:4].tolist(), counts[4:8].tolist()
        output_words, reference_words = counts[8:].tolist()
        bleu = BLEU.compute_bleu(
            matches, totals, output_words, reference_words, smooth_method="exp"
        )
        return float(bleu.score)

    @staticmethod
    def length_ratio(counts: Counts) -> float:
        """Return output words over reference words, from counts summed over sentences, [10]."""
        return float(counts[8] / max(1, counts[9]))
