"""sacrebleu's translation edit rate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from npad.metrics.metric import FloatArray, Metric, Reference, reference_texts


@dataclass(frozen=True)
class Ter(Metric):
    """Word edits, moves of phrases included, over words of the references, in per cent.

    Equal to sacrebleu's corpus score. Statistics are [3]: edits, words of the output, words of the
    reference (the mean of several).
    """

    name, title, unit = "ter", "TER", "%"
    description = "word edits, moves included, over words of the references"
    lower_is_better = True
    best = 0.0
    utility = "wer"  # moves cost too much time to be searched for every pair of candidates

    def statistics(
        self, texts: Sequence[str], references: Sequence[Reference], log_probs: Sequence[float] = ()
    ) -> FloatArray:
        from sacrebleu.metrics.ter import TER

        metric, rows = TER(), np.zeros((len(texts), 3))
        for row, text, reference in zip(rows, texts, references, strict=True):
            score = metric.sentence_score(text, reference_texts(reference))
            row[:] = score.num_edits, len(text.split()), score.ref_length
        return rows

    def scores(self, sums: FloatArray) -> FloatArray:
        edits, words = sums[..., 0], sums[..., 2]
        rates = edits / np.where(words > 0, words, 1)
        return 100 * np.where(words > 0, rates, np.minimum(rates, 1))  # as sacrebleu without words

    def signature(self) -> str:
        from sacrebleu.metrics.ter import TER

        metric = TER()
        metric.num_refs = 1
        return str(metric.get_signature())
