"""What a metric is: a row of numbers per output, and the score of any sum of such rows.

Because statistics add up over sentences, the score of a resampled test set needs no second look at
the texts. `npad evaluate`, `compare`, `calibrate` and `reproduce`, minimum Bayes risk, the targets
of actors and every bootstrap take any `Metric`. A new one is a class in a file of its own and an
entry of `METRICS` in `registry.py`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from npad.errors import InvalidInput
from npad.validation import brief

FloatArray = NDArray[np.float64]
Reference = str | Sequence[str]  # one text, or several for the same output

TIE = 1e-3  # nats, the largest difference between two float32 sums of the same output


class Metric(ABC):
    """A quality metric of outputs, with one or several references each.

    Attributes:
        name: on the command line and in records.
        title: in tables and plots.
        description: what it measures, in a legend.
        note: what else a reader of a table must know.
        unit: of the score, such as "%".
        lower_is_better: whether scores are errors.
        needs_references: whether outputs are compared with references.
        compares_tokens: whether minimum Bayes risk may use it, on two sequences of tokens.
        is_mean: whether the score is the mean of the first statistic; the second is then 1.
        tie: the largest difference of two scores that may be rounding.
        best: the score of an output that equals its reference.
        digits: decimals in tables.
        utility: the metric by which candidates are selected (minimum Bayes risk) to be good by this
            one.
        min_span: of a plot's axis. Two systems of equal quality differ by up to a quarter of it on
            1,000 to 3,000 sentences: a narrower axis would show noise.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    description: ClassVar[str] = "of the outputs against the references"
    note: ClassVar[str] = ""
    unit: ClassVar[str] = ""
    lower_is_better: ClassVar[bool] = False
    needs_references: ClassVar[bool] = True
    compares_tokens: ClassVar[bool] = True
    is_mean: ClassVar[bool] = False
    tie: ClassVar[float] = 1e-9
    best: ClassVar[float] = 100.0
    digits: ClassVar[int] = 2
    utility: ClassVar[str] = "chrf"

    @property
    def min_span(self) -> float:
        return 2.0

    @property
    def direction(self) -> str:
        """Describe which direction is better."""
        return "lower is better" if self.lower_is_better else "higher is better"

    @property
    def sign(self) -> int:
        """1 if more is better, else −1."""
        return -1 if self.lower_is_better else 1

    @abstractmethod
    def statistics(
        self, texts: Sequence[str], references: Sequence[Reference], log_probs: Sequence[float] = ()
    ) -> FloatArray:
        """Return the statistics of each output, [sentences, k].

        Args:
            texts: the outputs.
            references: those of each output; empty texts if the metric needs none.
            log_probs: of the outputs, for a metric of probabilities.
        """

    @abstractmethod
    def scores(self, sums: FloatArray) -> FloatArray:
        """Return the scores [...] of test sets from their summed statistics [..., k]."""

    def score(self, statistics: FloatArray) -> float:
        """Return the score of a test set from its statistics [sentences, k]."""
        return float(self.scores(statistics.sum(0)))

    def qualities(self, sums: FloatArray) -> FloatArray:
        """Return the scores [...], negated if lower is better."""
        return self.sign * self.scores(sums)

    def sentence_scores(self, statistics: FloatArray) -> FloatArray:
        """Return the score of each output by itself, [sentences]."""
        return self.scores(statistics)

    def length_ratio(self, sums: FloatArray) -> float:
        """Return output words over reference words; the last two statistics count them."""
        return float(sums[-2] / max(1, sums[-1]))

    def fitted(self, references: Sequence[Reference]) -> Metric:
        """Return the metric with what it learns from all references of a test set."""
        return self

    def of_tokens(self) -> Metric:
        """Return the metric of texts that are tokens separated by spaces, not normalised again."""
        return self

    def signature(self) -> str:
        """Return how the score is computed, if a tool such as sacrebleu has a line for it."""
        return ""

    def utilities(self, texts: Sequence[str], references: Sequence[str]) -> FloatArray:
        """Return the quality of every text against every reference, [texts, references]."""
        pairs = [(text, reference) for text in texts for reference in references]
        left, right = [text for text, _ in pairs], [reference for _, reference in pairs]
        scores = self.sign * self.sentence_scores(self.statistics(left, right))
        equal = np.array([text == reference for text, reference in pairs], bool)
        return np.where(equal, self.sign * self.best, scores).reshape(len(texts), len(references))


@dataclass(frozen=True)
class LogProb(Metric):
    """Mean clean log-probability of the outputs, end token included."""

    name, title = "logprob", "log p"
    description = "mean log p under the clean model"
    needs_references, compares_tokens, is_mean = False, False, True
    tie = TIE
    digits = 3

    def statistics(
        self, texts: Sequence[str], references: Sequence[Reference], log_probs: Sequence[float] = ()
    ) -> FloatArray:
        return self.of(log_probs)

    @staticmethod
    def of(log_probs: ArrayLike) -> FloatArray:
        """Return the statistics [sentences, 2] of log-probabilities."""
        values = np.asarray(log_probs, np.float64)
        return np.stack([values, np.ones(len(values))], -1)

    def scores(self, sums: FloatArray) -> FloatArray:
        mean: FloatArray = sums[..., 0] / sums[..., 1]
        return mean


class Scorer:
    """A metric against the references of a test set, with statistics cached by output.

    Args:
        metric: the metric.
        references: those of each sentence.
    """

    def __init__(self, metric: Metric, references: Sequence[Reference]) -> None:
        self.metric, self.references = metric.fitted(references), references
        self.cache: dict[tuple[int, str], FloatArray] = {}

    def statistics(self, texts: Sequence[str], log_probs: Sequence[float] = ()) -> FloatArray:
        """Return the statistics of each output, [sentences, k].

        Raises:
            InvalidInput: there are not as many outputs as references.
        """
        if len(texts) != len(self.references):
            raise InvalidInput(
                f"there are {len(texts):,} outputs and references of {len(self.references):,}; "
                "they must be pairs"
            )
        if not self.metric.needs_references:
            return self.metric.statistics(texts, self.references, log_probs)
        missing = [(i, text) for i, text in enumerate(texts) if (i, text) not in self.cache]
        rows = self.metric.statistics(
            [text for _, text in missing], [self.references[i] for i, _ in missing]
        )
        self.cache.update(zip(missing, rows, strict=True))
        return np.stack([self.cache[i, text] for i, text in enumerate(texts)])

    def score(self, texts: Sequence[str]) -> float:
        """Return the score of outputs."""
        return self.metric.score(self.statistics(texts))


def reference_texts(reference: Reference) -> Sequence[str]:
    """Return the references of one output as a list.

    Raises:
        InvalidInput: there is none.
    """
    if isinstance(reference, str):
        return [reference]
    if not reference or not all(isinstance(text, str) for text in reference):
        raise InvalidInput(
            f"an output needs a reference, or a list of one or more, not {brief(reference)}"
        )
    return reference
