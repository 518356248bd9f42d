"""sacrebleu's BLEU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from npad.metrics.metric import FloatArray, Metric, Reference, reference_texts

ORDER = 4  # longest n-gram


@dataclass(frozen=True)
class Bleu(Metric):
    """BLEU, equal to sacrebleu's corpus score.

    Statistics are [10]: matching n-grams for n = 1 to 4, all n-grams for n = 1 to 4, words of the
    output, words of the reference of closest length.

    Attributes:
        tokenize: sacrebleu's tokenizer.
        smooth: sacrebleu's smoothing of orders without a match.
    """

    tokenize: str = "13a"
    smooth: str = "exp"

    name, title = "bleu", "BLEU"

    def statistics(
        self, texts: Sequence[str], references: Sequence[Reference], log_probs: Sequence[float] = ()
    ) -> FloatArray:
        metric = self._sacrebleu(effective_order=True)  # for sentences; it changes no count
        rows = np.zeros((len(texts), 2 * ORDER + 2))
        for row, text, reference in zip(rows, texts, references, strict=True):
            prepared = [self.prepare(each) for each in reference_texts(reference)]
            score = metric.sentence_score(self.prepare(text), prepared)
            row[:] = (*score.counts, *score.totals, score.sys_len, score.ref_len)
        return rows

    def scores(self, sums: FloatArray) -> FloatArray:
        return self._scores(sums, effective_order=False)

    def score(self, statistics: FloatArray) -> float:
        return self._smoothed(statistics.sum(0), effective_order=False)  # sacrebleu's last digit

    def sentence_scores(self, statistics: FloatArray) -> FloatArray:
        return self._scores(statistics, effective_order=True)

    def _scores(self, sums: FloatArray, effective_order: bool) -> FloatArray:
        matches, totals = sums[..., :ORDER], sums[..., ORDER : 2 * ORDER]
        output_words, reference_words = sums[..., -2], sums[..., -1]
        with np.errstate(divide="ignore", invalid="ignore"):
            brevity = np.exp(np.minimum(0.0, 1 - reference_words / output_words))
            scores = 100 * brevity * np.exp(np.log(matches / totals).mean(-1))
        unmatched = (matches == 0).any(-1)
        scores = np.where(unmatched, 0.0, scores)
        smoothed = unmatched & (effective_order or self.smooth != "none")
        for index in np.argwhere(smoothed):  # few
            scores[tuple(index)] = self._smoothed(sums[tuple(index)], effective_order)
        return scores

    def of_tokens(self) -> Metric:
        return replace(self, tokenize="none")

    def signature(self) -> str:
        metric = self._sacrebleu(effective_order=False)
        metric.num_refs = 1
        return str(metric.get_signature())

    def prepare(self, text: str) -> str:
        """Return a text as it is given to sacrebleu."""
        return text

    def _sacrebleu(self, effective_order: bool) -> Any:
        from sacrebleu.metrics.bleu import BLEU

        return BLEU(
            tokenize=self.tokenize, smooth_method=self.smooth, effective_order=effective_order
        )

    def _smoothed(self, sums: FloatArray, effective_order: bool) -> float:
        from sacrebleu.metrics.bleu import BLEU

        counts = [int(count) for count in sums]
        score = BLEU.compute_bleu(
            counts[:ORDER],
            counts[ORDER : 2 * ORDER],
            counts[-2],
            counts[-1],
            smooth_method=self.smooth,
            effective_order=effective_order,
        )
        return float(score.score)
