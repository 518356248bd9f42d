"""Which candidate to keep: a selector gives every one a number, higher is better, and finished ones come first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from numbers import Real
from typing import Any, Protocol

import torch
from torch import Tensor

from npad.errors import InvalidInput
from npad.search.hypotheses import Found, Hypothesis
from npad.validation import brief, ensure_callable, ensure_number


class Selector(Protocol):
    """[sentences, n] for distinct candidates; those with `needs_attention` find their coverage filled in."""

    def __call__(self, found: Found) -> Tensor: ...


@dataclass(frozen=True)
class MostProbable:
    """The clean log-probability: the paper's, and the one whose guarantee is NPAD's."""

    def __call__(self, found: Found) -> Tensor:
        return found.log_prob


@dataclass(frozen=True)
class LengthNormalised:
    """log p / length^alpha, the end symbol counted: alpha 0 is MostProbable, alpha 1 the mean per symbol."""

    alpha: float = 1.0

    def __post_init__(self) -> None:
        ensure_number("alpha", self.alpha, least=0)

    def __call__(self, found: Found) -> Tensor:
        return found.log_prob / _length(found) ** self.alpha


@dataclass(frozen=True)
class GNMTLength:
    """Google's length and coverage penalties (Wu et al., 2016, eq. 14).

    log p / ((5 + length) / 6)^alpha + beta · Σ_i log(min(attention that source symbol i received, 1)). With beta above
    0 the model must offer `attention`; a source position that no candidate ever looked at counts as padding.
    """

    alpha: float = 0.6
    beta: float = 0.0

    def __post_init__(self) -> None:
        ensure_number("alpha", self.alpha, least=0)
        ensure_number("beta", self.beta, least=0)

    @property
    def needs_attention(self) -> bool:
        return self.beta > 0

    def __call__(self, found: Found) -> Tensor:
        normalised = found.log_prob / ((5 + _length(found)) / 6) ** self.alpha
        if found.coverage is None:
            return normalised
        coverage = found.coverage.masked_fill(~found.exists[..., None], 0)
        real = (coverage > 0).any(1, keepdim=True)
        penalty = coverage.clamp(1e-9, 1).log().masked_fill(~real, 0).sum(-1)
        return normalised + self.beta * penalty


@dataclass(frozen=True)
class MBR:
    """Minimum Bayes risk: the candidate most like all the others, each counted as often as it was found.

    utility: "chrf" or "bleu" (sacrebleu's, of a sentence), or your own function of (hypothesis, reference) texts.
    text: turns symbols into text; without it every symbol is one letter and one word, so that chrF and BLEU compare
    sequences of symbols. Cost: n² utilities for n distinct candidates.
    """

    utility: str | Callable[[str, str], float] = "chrf"
    text: Callable[[tuple[int, ...]], str] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.utility, str) or self.utility not in ("chrf", "bleu"):
            ensure_callable("utility", self.utility, "'chrf', 'bleu' or a function of two texts")
        if self.text is not None:
            ensure_callable("text", self.text, "a function from tokens to text, or None")

    def __call__(self, found: Found) -> Tensor:
        utility = self.utility if callable(self.utility) else _sacrebleu(self.utility)
        text = self.text or _letters
        risk = torch.zeros(found.lengths.shape)
        for s, candidates in enumerate(found.hypotheses()):
            texts = [_ensure_text(text(candidate.tokens)) for candidate in candidates]
            weights = [candidate.count for candidate in candidates]
            for i, hypothesis in enumerate(texts):
                utilities = [utility(hypothesis, reference) for reference in texts]
                risk[s, i] = _weighted_mean(utilities, weights)
        return risk.to(found.log_prob.device)


@dataclass(frozen=True)
class Rerank:
    """Your own judgement: a function of a `Hypothesis` that returns a number, higher is better."""

    key: Callable[[Hypothesis], float]

    def __post_init__(self) -> None:
        if not callable(self.key):
            raise InvalidInput(f"Rerank needs a function of a Hypothesis, not {brief(self.key)}")

    def __call__(self, found: Found) -> Tensor:
        scores = torch.zeros(found.lengths.shape, dtype=torch.float64)
        for s, candidates in enumerate(found.hypotheses()):
            for i, one in enumerate(candidates):
                value: object = self.key(one)
                if not isinstance(value, Real):
                    raise InvalidInput(
                        f"the function given to Rerank must return a number, not {brief(value)}"
                    )
                scores[s, i] = float(value)
        return scores.to(found.log_prob.device)


def _ensure_text(text: object) -> str:
    if not isinstance(text, str):
        raise InvalidInput(
            f"the function given to MBR as text must return a text, not {brief(text)}"
        )
    return text


def _weighted_mean(utilities: list[Any], weights: list[int]) -> float:
    try:
        weighted = (w * utility for w, utility in zip(weights, utilities, strict=True))
        return float(sum(weighted) / sum(weights))
    except (TypeError, ValueError, RuntimeError) as error:
        raise InvalidInput(
            f"MBR's utility must return a number, not {brief(utilities[0])}"
        ) from error


def rank(found: Found, selector: Selector) -> Found:
    """Sort distinct candidates [sentences, n] by a selector, finished ones first.

    Raises:
        InvalidInput: the selector returned no number for a candidate.
    """
    found = found.best_first()  # the order in which ties stay
    if isinstance(selector, MostProbable):
        return found
    scores: object = selector(found)
    name = getattr(selector, "__name__", type(selector).__name__)
    shape = list(found.lengths.shape)
    if not isinstance(scores, Tensor) or list(scores.shape) != shape:
        got = list(scores.shape) if isinstance(scores, Tensor) else repr(scores)
        raise InvalidInput(f"the selector {name} must return a tensor {shape}, not {got}")
    if bool((scores.isnan() & found.exists).any()):
        raise InvalidInput(
            f"the selector {name} returned NaN; it must return a number for every hypothesis"
        )
    return found.best_first(scores.masked_fill(~found.exists, 0))


def _length(found: Found) -> Tensor:
    """Generated symbols, the end symbol included; at least 1."""
    return (found.lengths + found.finished).clamp(min=1)


def _letters(tokens: tuple[int, ...]) -> str:
    """Each symbol as a letter of its own, apart from each other, in planes of Unicode without spaces or case."""
    if max(tokens, default=0) > 0x10FFFF - 0x20000:
        raise InvalidInput(
            f"MBR has no letter for symbol {max(tokens)}: give it text=, a function from symbols to text"
        )
    return " ".join(chr(0x20000 + token) for token in tokens)


@cache
def _sacrebleu(name: str) -> Callable[[str, str], float]:
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF

    metric = CHRF() if name == "chrf" else BLEU(effective_order=True, tokenize="none")

    def utility(hypothesis: str, reference: str) -> float:
        if hypothesis == reference:
            return 100.0  # of two empty texts, too, where sacrebleu says 0
        return float(metric.sentence_score(hypothesis, [reference]).score)

    return utility
