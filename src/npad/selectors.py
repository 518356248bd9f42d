"""Selectors: score the candidates of a search, higher is better.

Finished candidates rank before those cut at `max_length`, unless the selector is `WithCut(…)`.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from numbers import Real
from typing import Any, ClassVar, Literal, Protocol, TypeVar

import torch
from torch import Tensor

from npad.errors import InvalidInput
from npad.hypotheses import Hypotheses, Hypothesis
from npad.metrics.registry import is_utility, metric_named, utility_names
from npad.validation import brief, ensure_callable, ensure_fields

FIRST_LETTER = 0x20000  # plane 2 of Unicode, which has neither spaces nor upper and lower case
MAX_LETTER = 0x10FFFF  # the last code point of Unicode


Number = TypeVar("Number", float, Tensor)


class Selector(Protocol):
    """A function that scores distinct candidates.

    If it has a true attribute `needs_attention`, the candidates' `coverage` is filled in; if it has
    a true attribute `cut_competes`, candidates cut at `max_length` rank among the finished ones.
    """

    def __call__(self, candidates: Hypotheses) -> Tensor:
        """Return the scores [sentences, n] of candidates [sentences, n]."""


@dataclass(frozen=True)
class MostProbable:
    """Select by clean log-probability, as in the paper.

    The guarantee that NPAD is never worse than its inner decoder holds for this selector.
    """

    def __call__(self, candidates: Hypotheses) -> Tensor:
        return candidates.log_prob


@dataclass(frozen=True)
class LengthNormalised:
    """Select by log p / length^alpha; the length includes the end token.

    alpha = 0 is `MostProbable`, alpha = 1 the mean log-probability per token.
    """

    by_length: ClassVar[bool] = True

    alpha: float = field(default=1.0, metadata={"minimum": 0})

    def __post_init__(self) -> None:
        ensure_fields(self)

    def __call__(self, candidates: Hypotheses) -> Tensor:
        return self.score(candidates.log_prob, _length(candidates))

    def score(self, log_prob: Number, length: Number) -> Number:
        """Return the score of a log-probability, or a tensor of them, by length of 1 or more."""
        normalised: Number = log_prob / length**self.alpha
        return normalised


@dataclass(frozen=True)
class GNMTLength:
    """Select by GNMT's length and coverage penalties (Wu et al., 2016, eq. 14).

    score = log p / ((5 + length) / 6)^alpha + beta · Σ_i log(min(attention to source token i, 1)).
    If beta > 0, the model must offer `attention`; a source position that received no attention from
    any candidate counts as padding.
    """

    by_length: ClassVar[bool] = True

    alpha: float = field(default=0.6, metadata={"minimum": 0})
    beta: float = field(default=0.0, metadata={"minimum": 0})

    def __post_init__(self) -> None:
        ensure_fields(self)

    @property
    def needs_attention(self) -> bool:
        return self.beta > 0

    def __call__(self, candidates: Hypotheses) -> Tensor:
        normalised = candidates.log_prob / ((5 + _length(candidates)) / 6) ** self.alpha
        if candidates.coverage is None:
            return normalised
        coverage = candidates.coverage.masked_fill(~candidates.exists[..., None], 0)
        attended = (coverage > 0).any(1, keepdim=True)
        penalty = coverage.clamp(1e-9, 1).log().masked_fill(~attended, 0).sum(-1)
        return normalised + self.beta * penalty


@dataclass(frozen=True)
class MBR:
    """Select by minimum Bayes risk: the highest mean utility against all candidates.

    Each candidate counts as a reference as often as the chains produced it. Cost: n² utilities for
    n distinct candidates. `MBRDecoding` has references apart from the candidates.

    Attributes:
        utility: the name of a metric, such as "chrf" or "bleu" (sacrebleu's sentence scores) or
            "wer" (minus the word error rate in per cent), or a function of two texts,
            (hypothesis, reference).
        text: a function from tokens to text. By default every token is a word of one letter, so
            that chrF and BLEU compare token sequences.
    """

    utility: str | Callable[[str, str], float] = "chrf"
    text: Callable[[tuple[int, ...]], str] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.utility, str) or not is_utility(self.utility):
            rule = f"{', '.join(map(repr, utility_names()))} or a function of two texts"
            ensure_callable("utility", self.utility, rule)
        if self.text is not None:
            ensure_callable("text", self.text, "a function from tokens to text, or None")

    def with_texts(self, text: Callable[[tuple[int, ...]], str]) -> MBR:
        """Return this selector with a function from tokens to text, unless it has one."""
        return replace(self, text=text) if self.text is None else self

    def __call__(self, candidates: Hypotheses) -> Tensor:
        return self.expected_utility(candidates, candidates)

    def expected_utility(self, candidates: Hypotheses, references: Hypotheses) -> Tensor:
        """Return the mean utility [sentences, n] of candidates, by references [sentences, m]."""
        expected = torch.zeros(candidates.lengths.shape)
        pairs = zip(candidates.to_lists(), references.to_lists(), strict=True)
        for s, (sentence_candidates, sentence_references) in enumerate(pairs):
            texts = self._texts(sentence_candidates), self._texts(sentence_references)
            utilities = self.expected_utilities(*texts, self._weights(sentence_references))
            for i, utility in enumerate(utilities):
                expected[s, i] = utility
        return expected.to(candidates.log_prob.device)

    def expected_utilities(
        self, texts: list[str], references: list[str], weights: Sequence[float]
    ) -> list[float]:
        """Return the weighted mean utility of each text, by references [m] of weights [m]."""
        if callable(self.utility):
            utilities = [[self.utility(text, other) for other in references] for text in texts]
        else:
            metric = metric_named(self.utility).of_tokens()
            utilities = metric.utilities(texts, references).tolist()
        return [_weighted_mean(row, weights) for row in utilities]

    def _texts(self, hypotheses: list[Hypothesis]) -> list[str]:
        text = self.text or _letters
        return [_ensure_text(text(hypothesis.tokens)) for hypothesis in hypotheses]

    def _weights(self, references: list[Hypothesis]) -> list[float]:
        return [reference.count for reference in references]


@dataclass(frozen=True)
class ModelMBR(MBR):
    """Select as MBR does, with references weighed by the model's probability (Jinnai et al., 2023).

    Probabilities are normalised over the distinct references, whatever their counts.
    """

    def _weights(self, references: list[Hypothesis]) -> list[float]:
        best = max((reference.log_prob for reference in references), default=0.0)
        return [math.exp(reference.log_prob - best) for reference in references]


Weighting = Literal["probability", "count"]


@dataclass(frozen=True)
class Vote:
    """Select the answer that most of the weight is on: candidates of one text vote together.

    Texts are compared in the task's normal form, such as the words of a transcript. Within a text,
    the most probable candidate is returned. With `answer` only that part of a text is compared,
    as in self-consistency (Wang et al., 2023); a text without it has no vote.

    Attributes:
        weights: of a candidate: its probability, or how often it was found.
        alpha: probabilities are those of log p / length^alpha.
        answer: a regular expression; its last match is the answer, or the match's first group.
        text: a function from tokens to text; by default tokens are compared.
    """

    weights: Weighting = "probability"
    alpha: float = field(default=0.6, metadata={"minimum": 0})
    answer: str | None = None
    text: Callable[[tuple[int, ...]], str] | None = None

    def __post_init__(self) -> None:
        ensure_fields(self)
        if self.text is not None:
            ensure_callable("text", self.text, "a function from tokens to text, or None")
        try:
            re.compile(self.answer or "")
        except (re.error, TypeError) as error:
            rule = "answer must be a regular expression or None"
            raise InvalidInput(f"{rule}, not {brief(self.answer)}: {error}") from error

    def with_texts(self, text: Callable[[tuple[int, ...]], str]) -> Vote:
        """Return this selector with a function from tokens to text, unless it has one."""
        return replace(self, text=text) if self.text is None else self

    def __call__(self, candidates: Hypotheses) -> Tensor:
        scores = torch.zeros(candidates.lengths.shape, dtype=torch.float64)
        for s, hypotheses in enumerate(candidates.to_lists()):
            answers = [self.answer_of((self.text or _letters)(h.tokens)) for h in hypotheses]
            for i, share in enumerate(self.shares(answers, hypotheses)):
                scores[s, i] = share
        return scores.to(candidates.log_prob.device)

    def shares(
        self, answers: Sequence[str | None], hypotheses: Sequence[Hypothesis]
    ) -> list[float]:
        """Return the share of the weight that is on each hypothesis' answer; 0 without one."""
        return shares_of(answers, weights_of(hypotheses, self.weights, self.alpha))

    def answer_of(self, text: str) -> str | None:
        """Return the part of a text that votes; None if there is none."""
        if self.answer is None:
            return text
        found = list(re.finditer(self.answer, text))
        return None if not found else found[-1][min(1, found[-1].re.groups)]


def weights_of(
    hypotheses: Sequence[Hypothesis], by: Weighting = "probability", alpha: float = 0.0
) -> list[float]:
    """Return the weight of each hypothesis of one source; they add up to 1.

    Args:
        hypotheses: at least one. One that is listed several times, as samples are, has the weight
            of its probability once.
        by: the counts, or the model's probabilities, normalised over the list.
        alpha: probabilities are those of log p / length^alpha; the length includes the end token.
    """
    raw = [float(hypothesis.count) for hypothesis in hypotheses]
    best = max(h.log_prob for h in hypotheses)
    if by == "probability" and best > -math.inf:
        lengths = [max(1, len(h.tokens) + h.finished) for h in hypotheses]
        pairs = zip(hypotheses, lengths, strict=True)
        score = LengthNormalised(alpha).score
        logs = [score(h.log_prob, length) for h, length in pairs]
        copies = Counter((h.tokens, h.finished) for h in hypotheses)
        raw = [
            math.exp(log - max(logs)) / copies[h.tokens, h.finished]
            for log, h in zip(logs, hypotheses, strict=True)
        ]
    return [weight / sum(raw) for weight in raw]


def shares_of(answers: Sequence[str | None], weights: Sequence[float]) -> list[float]:
    """Return the weight of all hypotheses with the same answer, for each; 0 for no answer."""
    shares: dict[str | None, float] = defaultdict(float)
    for answer, weight in zip(answers, weights, strict=True):
        shares[answer] += weight if answer is not None else 0.0
    return [shares[answer] for answer in answers]


@dataclass(frozen=True)
class Rerank:
    """Select by a function of a `Hypothesis` that returns a number, higher is better."""

    key: Callable[[Hypothesis], float]

    def __post_init__(self) -> None:
        if not callable(self.key):
            raise InvalidInput(f"Rerank needs a function of a Hypothesis, not {brief(self.key)}")

    def __call__(self, candidates: Hypotheses) -> Tensor:
        scores = torch.zeros(candidates.lengths.shape, dtype=torch.float64)
        for s, sentence_candidates in enumerate(candidates.to_lists()):
            for i, hypothesis in enumerate(sentence_candidates):
                value: object = self.key(hypothesis)
                if not isinstance(value, Real):
                    raise InvalidInput(
                        f"Rerank's function must return a number, not {brief(value)}"
                    )
                scores[s, i] = float(value)
        return scores.to(candidates.log_prob.device)


@dataclass(frozen=True)
class WithCut:
    """Select by another selector, with candidates cut at `max_length` among the finished ones.

    The order of `generate` in transformers, for models that continue a text: there, being cut is no
    fault. With `MostProbable` it is the order of log-probability alone, in which NPAD is never
    worse than its inner decoder, either. A cut candidate has not paid for its end token.
    """

    selector: Selector = field(
        default_factory=MostProbable,
        metadata={"rule": "a function of the candidates, such as MostProbable()"},
    )

    cut_competes: ClassVar[bool] = True

    def __post_init__(self) -> None:
        ensure_fields(self)

    def with_texts(self, text: Callable[[tuple[int, ...]], str]) -> WithCut:
        """Let MBR within compare texts, unless it has a function of its own."""
        changed = with_texts(self.selector, text)
        return self if changed is self.selector else WithCut(changed)

    @property
    def needs_attention(self) -> bool:
        return needs_attention(self.selector)

    def __call__(self, candidates: Hypotheses) -> Tensor:
        return self.selector(candidates)


def needs_attention(selector: Selector) -> bool:
    """Return whether a selector reads the attention of the candidates."""
    return bool(getattr(selector, "needs_attention", False))


def cut_competes(selector: Selector) -> bool:
    """Return whether candidates cut at max_length rank among the finished ones."""
    return bool(getattr(selector, "cut_competes", False))


def innermost_selector(selector: Selector) -> Selector:
    """Return the selector that scores, without `WithCut` around it."""
    while isinstance(selector, WithCut):
        selector = selector.selector
    return selector


def with_texts(selector: Selector, text: Callable[[tuple[int, ...]], str]) -> Selector:
    """Let MBR compare texts instead of tokens, unless it has a `text` of its own."""
    taking: Any = getattr(selector, "with_texts", None)
    changed: Selector = selector if taking is None else taking(text)
    return changed


def _ensure_text(text: object) -> str:
    if not isinstance(text, str):
        raise InvalidInput(f"MBR's text function must return a text, not {brief(text)}")
    return text


def _weighted_mean(utilities: list[Any], weights: Sequence[float]) -> float:
    try:
        weighted = (weight * utility for weight, utility in zip(weights, utilities, strict=True))
        return float(sum(weighted) / sum(weights))
    except (TypeError, ValueError, RuntimeError) as error:
        raise InvalidInput(
            f"MBR's utility must return a number, not {brief(utilities[0])}"
        ) from error


def rank(candidates: Hypotheses, selector: Selector) -> Hypotheses:
    """Sort distinct candidates [sentences, n] by a selector, finished ones first unless `WithCut`.

    Raises:
        InvalidInput: the selector did not return a number for every candidate.
    """
    competes = cut_competes(selector)
    candidates = candidates.best_first(cut_competes=competes)  # the order in which ties stay
    if isinstance(selector, MostProbable):
        return candidates
    scores: object = selector(candidates)
    name = getattr(selector, "__name__", type(selector).__name__)
    shape = list(candidates.lengths.shape)
    if not isinstance(scores, Tensor) or list(scores.shape) != shape:
        got = list(scores.shape) if isinstance(scores, Tensor) else repr(scores)
        raise InvalidInput(f"the selector {name} must return a tensor {shape}, not {got}")
    if bool((scores.isnan() & candidates.exists).any()):
        raise InvalidInput(
            f"the selector {name} returned NaN; it must return a number for every hypothesis"
        )
    return candidates.best_first(scores, competes)


def _length(candidates: Hypotheses) -> Tensor:
    """Return the number of generated tokens, end token included, at least 1."""
    return (candidates.lengths + candidates.finished).clamp(min=1)


def _letters(tokens: tuple[int, ...]) -> str:
    """Return the tokens as one-letter words."""
    if max(tokens, default=0) > MAX_LETTER - FIRST_LETTER:
        raise InvalidInput(
            f"MBR has no letter for token {max(tokens)}: pass text=, a function from tokens to text"
        )
    return " ".join(chr(FIRST_LETTER + token) for token in tokens)
