"""Quality metrics as sums over sentences, for test sets that are resampled many times.

A metric keeps a few numbers for every sentence; the score of any test set is a function of their
sums. BLEU and chrF are sacrebleu's corpus scores.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from npad.errors import InvalidInput
from npad.evaluate.bleu import Bleu
from npad.evaluate.bootstrap import TIE
from npad.evaluate.chrf import chrf, chrf_counts
from npad.evaluate.wer import wer_counts
from npad.validation import brief

FloatArray = NDArray[np.float64]


class Metric(ABC):
    """A quality metric of outputs.

    Attributes:
        name: on the command line.
        title: in tables and plots.
        needs_references: whether outputs are compared with references.
        lower_is_better: whether `scores` are errors.
        tie: the largest difference of two scores that may be rounding.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    needs_references: ClassVar[bool] = True
    lower_is_better: ClassVar[bool] = False
    tie: ClassVar[float] = 1e-9

    @abstractmethod
    def statistics(
        self, texts: Sequence[str], log_probs: Sequence[float], references: Sequence[str]
    ) -> FloatArray:
        """Return what is summed over sentences, [sentences, k]."""

    @abstractmethod
    def scores(self, sums: FloatArray) -> FloatArray:
        """Return the scores [...] of test sets from their summed statistics [..., k]."""

    def qualities(self, sums: FloatArray) -> FloatArray:
        """Return the scores [...], negated if lower is better."""
        return -self.scores(sums) if self.lower_is_better else self.scores(sums)


class BleuMetric(Metric):
    """sacrebleu's BLEU."""

    name, title = "bleu", "BLEU"

    def statistics(
        self, texts: Sequence[str], log_probs: Sequence[float], references: Sequence[str]
    ) -> FloatArray:
        return Bleu(references).counts(texts).astype(np.float64)

    def scores(self, sums: FloatArray) -> FloatArray:
        matches, totals = sums[..., :4], sums[..., 4:8]
        output_words, reference_words = sums[..., 8], sums[..., 9]
        smooth = (matches == 0).any(-1)
        with np.errstate(divide="ignore", invalid="ignore"):
            brevity = np.exp(np.minimum(0.0, 1 - reference_words / output_words))
            scores = 100 * brevity * np.exp(np.log(matches / totals).mean(-1))
        scores = np.where(smooth, 0.0, scores)
        for index in np.argwhere(smooth):  # few: sacrebleu's exponential smoothing
            place = tuple(index)
            scores[place] = Bleu.score(sums[place].astype(np.int64))
        return scores


class ChrfMetric(Metric):
    """sacrebleu's chrF."""

    name, title = "chrf", "chrF"

    def statistics(
        self, texts: Sequence[str], log_probs: Sequence[float], references: Sequence[str]
    ) -> FloatArray:
        return chrf_counts(texts, references).astype(np.float64)

    def scores(self, sums: FloatArray) -> FloatArray:
        return chrf(sums)


class LogProbMetric(Metric):
    """Mean clean log-probability of the outputs, end token included."""

    name, title = "logprob", "log p"
    needs_references = False
    tie = TIE

    def statistics(
        self, texts: Sequence[str], log_probs: Sequence[float], references: Sequence[str]
    ) -> FloatArray:
        return np.stack([np.asarray(log_probs, np.float64), np.ones(len(log_probs))], -1)

    def scores(self, sums: FloatArray) -> FloatArray:
        mean: FloatArray = sums[..., 0] / sums[..., 1]
        return mean


class WerMetric(Metric):
    """Word error rate in per cent, of normalised English."""

    name, title, lower_is_better = "wer", "WER", True

    def statistics(
        self, texts: Sequence[str], log_probs: Sequence[float], references: Sequence[str]
    ) -> FloatArray:
        return wer_counts(texts, references).astype(np.float64)

    def scores(self, sums: FloatArray) -> FloatArray:
        rate: FloatArray = 100 * sums[..., 0] / np.maximum(sums[..., 1], 1)
        return rate


METRICS: dict[str, Metric] = {
    metric.name: metric for metric in (BleuMetric(), ChrfMetric(), LogProbMetric(), WerMetric())
}


def metric_named(name: str) -> Metric:
    """Return a metric by its name.

    Raises:
        InvalidInput: there is none of that name.
    """
    if not isinstance(name, str) or name not in METRICS:
        raise InvalidInput(f"metric must be one of {', '.join(METRICS)}, not {brief(name)}")
    return METRICS[name]
