"""Signals: how far an answer can be trusted, by what the search found; higher is better.

A signal is a number, whose scale means nothing by itself: `npad.storage.confidence` maps it to the
quality to expect. Only the decoder's own candidates are read, so that a signal needs no model call.
A new signal is a class here and its place in `SIGNALS`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple, Protocol

import numpy as np

from npad.errors import InvalidInput
from npad.hypotheses import Hypothesis
from npad.metrics.registry import is_utility, metric_named, utility_names
from npad.selectors import LengthNormalised, Weighting, shares_of, weights_of
from npad.specs import Registry
from npad.validation import brief, ensure_fields

NEGLIGIBLE = 1e-3  # of the weight: candidates of less are not compared


class Alternative(NamedTuple):
    """A hypothesis with its text in the task's normal form, such as the words of a transcript."""

    text: str
    hypothesis: Hypothesis


class Signal(Protocol):
    """A function of an answer and of all candidates of the search, which may have the answer too.

    Attributes:
        reads_list: whether it says anything only where there are several candidates.
    """

    reads_list: ClassVar[bool]

    def __call__(self, answer: Alternative, candidates: Sequence[Alternative]) -> float:
        """Return the signal of an answer."""


@dataclass(frozen=True)
class LogProbPerToken:
    """The answer's log-probability per token, its end token included if it is finished."""

    reads_list: ClassVar[bool] = False

    def __call__(self, answer: Alternative, candidates: Sequence[Alternative]) -> float:
        return log_prob_per_token(answer.hypothesis)


@dataclass(frozen=True)
class Posterior:
    """The share of the candidates' weight that is on the answer's text.

    Attributes:
        weights: of a candidate: its probability, or how often it was found.
        alpha: probabilities are those of log p / length^alpha.
    """

    reads_list: ClassVar[bool] = True

    weights: Weighting = "probability"
    alpha: float = field(default=0.0, metadata={"minimum": 0})

    def __post_init__(self) -> None:
        ensure_fields(self)

    def __call__(self, answer: Alternative, candidates: Sequence[Alternative]) -> float:
        weights = weights_of([c.hypothesis for c in candidates], self.weights, self.alpha)
        texts = [candidate.text for candidate in candidates]
        return shares_of([*texts, answer.text], [*weights, 0.0])[-1]


@dataclass(frozen=True)
class Similarity:
    """The answer's expected similarity to a candidate, by a metric.

    Candidates that mean the same count together where their texts are alike; `Posterior` needs them
    to be equal.

    Attributes:
        metric: the name of a metric that compares two texts, such as "chrf" or "wer".
        weights: of a candidate: its probability, or how often it was found.
        alpha: probabilities are those of log p / length^alpha.
    """

    reads_list: ClassVar[bool] = True

    metric: str = "chrf"
    weights: Weighting = "probability"
    alpha: float = field(default=0.0, metadata={"minimum": 0})

    def __post_init__(self) -> None:
        ensure_fields(self)
        if not isinstance(self.metric, str) or not is_utility(self.metric):
            names = ", ".join(utility_names())
            raise InvalidInput(f"metric must be one of {names}, not {brief(self.metric)}")

    def __call__(self, answer: Alternative, candidates: Sequence[Alternative]) -> float:
        weights = weights_of([c.hypothesis for c in candidates], self.weights, self.alpha)
        texts = [candidate.text for candidate in candidates]
        shares = dict(zip(texts, shares_of(texts, weights), strict=True))
        compared = {text: share for text, share in shares.items() if share >= NEGLIGIBLE}
        similarities = metric_named(self.metric).utilities([answer.text], list(compared))[0]
        return float(np.average(similarities, weights=list(compared.values())))


@dataclass(frozen=True)
class SureSimilarity(Similarity):
    """`Similarity`, times the answer's probability per token.

    Where a list is narrow, as a beam's is, candidates can be alike though the model is unsure. The
    metric must be one of 0 to 100, such as chrF; for one of errors, 100 less the errors counts.
    """

    def __call__(self, answer: Alternative, candidates: Sequence[Alternative]) -> float:
        similarity = super().__call__(answer, candidates)
        if metric_named(self.metric).lower_is_better:
            similarity = max(0.0, 100.0 + similarity)
        return similarity * math.exp(log_prob_per_token(answer.hypothesis))


SIGNALS = Registry("signal", Signal, LogProbPerToken, Posterior, Similarity, SureSimilarity)
DEFAULT = LogProbPerToken()  # which needs no list


def log_prob_per_token(hypothesis: Hypothesis) -> float:
    """Return the log-probability over the tokens it is of, the end token included if finished."""
    length = max(1, len(hypothesis.tokens) + hypothesis.finished)
    return LengthNormalised().score(hypothesis.log_prob, length)
