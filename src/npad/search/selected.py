"""Selection among all candidates of a decoder, such as a beam's list by length-normalised score."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from npad.errors import InvalidInput
from npad.hypotheses import Hypotheses
from npad.model import Capabilities, Model
from npad.rescoring.strategies import rescore
from npad.rows import Problems
from npad.search.beam import Beam
from npad.search.decoder import Cost, Decoder, has_candidates
from npad.selectors import MBR, MostProbable, Selector, cut_competes, innermost_selector, rank
from npad.specs import name_of_kind


@dataclass(frozen=True)
class Selected(Decoder):
    """Rank all finished hypotheses of a decoder by a selector.

    Returns the distinct ones. `Selected(Beam(5), LengthNormalised())` is beam search with a length
    penalty: what `NPAD(Beam(5), chains=1, candidates="all", selector=LengthNormalised())` returns.
    Cost: that of the decoder, and one pass over the candidates if the selector reads attention or
    the model's scores are modified.

    Attributes:
        inner: the decoder; one that returns several hypotheses, or has a beam.
        selector: scores the candidates. With `WithCut`, those cut at max_length also count.
    """

    rescores: ClassVar[bool] = True
    returns_several: ClassVar[bool] = True
    compared: ClassVar[bool] = False
    example: ClassVar[str] = "--inner sampling --selector model-mbr"
    page: ClassVar[str] = "decoding.md#selectors"

    inner: Decoder = field(
        default_factory=Beam, metadata={"help": "the decoder whose candidates are ranked"}
    )
    selector: Selector = field(
        default_factory=MostProbable,
        metadata={
            "help": "which candidate is returned",
            "everyday": True,
            "rule": "a function of the candidates, such as LengthNormalised()",
        },
    )

    def ensure_allows(self, part: Decoder) -> None:
        if part.chains:
            raise InvalidInput("NPAD has a selector of its own: write NPAD(…, selector=…)")
        if not has_candidates(type(part)):
            raise InvalidInput(
                f"{type(part).__name__} returns one hypothesis, so there is nothing to "
                "select from; use Beam(5) or Sampling()"
            )

    @property
    def cost(self) -> Cost:
        return self.inner.cost + comparisons(self.selector, self.rows)

    @property
    def observed_rows(self) -> int:
        return self.inner.observed_rows

    @property
    def from_one_beam(self) -> bool:
        return self.inner.from_one_beam

    @classmethod
    def defaults_on(cls, defaults: Any) -> dict[str, Any]:
        return {"selector": defaults.selector}

    @property
    def title(self) -> str:
        return f"{self.inner.title}, {name_of_kind(type(innermost_selector(self.selector)))}"

    def search(self, model: Model[Any], state: Any, problems: Problems) -> Hypotheses:
        inner = self.inner.all_candidates()
        if not cut_competes(self.selector):
            inner = AllFinished(inner)
        candidates = inner.search(model, state, problems).cpu().distinct().hypotheses
        if self.needs_coverage or Capabilities.of(model).modified_scores:
            candidates = rescore(model, state, candidates, coverage=self.needs_coverage)
        return rank(candidates, self.selector)


@dataclass(frozen=True)
class AllFinished(Decoder):
    """Drop the hypotheses cut at max_length from each group that has finished ones."""

    inner: Decoder

    def search(self, model: Model[Any], state: Any, problems: Problems) -> Hypotheses:
        hypotheses = self.inner.search(model, state, problems)
        ended = hypotheses.finished & hypotheses.exists
        cut = ~ended & ended.any(1, keepdim=True)
        return replace(hypotheses, lengths=hypotheses.lengths.masked_fill(cut, -1))


def with_selector(decoder: Decoder, selector: Selector) -> Decoder:
    """Return a decoder whose candidates a selector ranks, unless that is its own order.

    A decoder with a selector of its own, and one without candidates, is returned as it is.
    """
    own = isinstance(selector, MostProbable) or hasattr(decoder, "selector")
    return decoder if own or not has_candidates(type(decoder)) else Selected(decoder, selector)


def comparisons(selector: Selector, candidates: int) -> Cost:
    """Return the cost of ranking some candidates: MBR compares each with each."""
    by_mbr = isinstance(innermost_selector(selector), MBR)
    return Cost(utilities=candidates**2 if by_mbr else 0)


def is_mbr_on_a_beam(decoder: Decoder) -> bool:
    """Return whether MBR selects from the list of one beam, whose candidates are too much alike."""
    return decoder.from_one_beam and decoder.cost.utilities > 0
