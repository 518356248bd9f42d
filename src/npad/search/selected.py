"""Selection among all candidates of a decoder, such as a beam's list by length-normalised score."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from npad.errors import InvalidInput
from npad.model import Capabilities, Model
from npad.rescoring.strategies import rescore
from npad.search.beam import Beam
from npad.search.decoder import Decoder, ensure_decoder, has_candidates
from npad.search.defaults import Defaults
from npad.search.diverse import Diverse
from npad.search.hypotheses import Hypotheses
from npad.search.mbr_decoding import MBRDecoding
from npad.search.npad import NPAD, AllFinished
from npad.search.rows import Problems
from npad.selectors import (
    MBR,
    MostProbable,
    Selector,
    cut_competes,
    innermost_selector,
    needs_attention,
    rank,
    with_texts,
)
from npad.specs import name_of_kind
from npad.validation import ensure_part


@dataclass(frozen=True)
class Selected(Decoder):
    """Rank all finished hypotheses of a decoder by a selector; return the distinct ones.

    `Selected(Beam(5), LengthNormalised())` is beam search with a length penalty: what
    `NPAD(Beam(5), chains=1, candidates="all", selector=LengthNormalised())` returns. Cost: that of
    the decoder, and one pass over the candidates if the selector reads attention or the model's
    scores are modified.

    Attributes:
        inner: the decoder; one that returns several hypotheses, or has a beam.
        selector: scores the candidates. With `WithCut`, those cut at max_length count, too.
    """

    rescores: ClassVar[bool] = True
    returns_several: ClassVar[bool] = True
    compared: ClassVar[bool] = False

    inner: Decoder = field(
        default_factory=Beam, metadata={"help": "the decoder whose candidates are ranked"}
    )
    selector: Selector = field(
        default_factory=MostProbable, metadata={"help": "which candidate is returned"}
    )

    def __post_init__(self) -> None:
        ensure_decoder(self.inner, "inner")
        ensure_part(
            "selector", self.selector, "a function of the candidates, such as LengthNormalised()"
        )
        if isinstance(self.inner, NPAD):
            raise InvalidInput("NPAD has a selector of its own: write NPAD(…, selector=…)")
        if not has_candidates(type(self.inner)):
            raise InvalidInput(
                f"{type(self.inner).__name__} returns one hypothesis, so there is nothing to "
                "select from; use Beam(5) or Sampling()"
            )

    @property
    def rows(self) -> int:
        return self.inner.rows

    @property
    def title(self) -> str:
        return f"{self.inner.title}, {name_of_kind(type(innermost_selector(self.selector)))}"

    @property
    def needs_coverage(self) -> bool:
        """Whether the selector reads the attention of the candidates."""
        return needs_attention(self.selector)

    def search(self, model: Model[Any], state: Any, problems: Problems) -> Hypotheses:
        inner = self.inner.all_candidates()
        if not cut_competes(self.selector):
            inner = AllFinished(inner)
        candidates = inner.search(model, state, problems).cpu().distinct().hypotheses
        if self.needs_coverage or Capabilities.of(model).modified_scores:
            candidates = rescore(model, state, candidates, coverage=self.needs_coverage)
        return rank(candidates, self.selector)


def default_decoder(model: Model[Any]) -> Decoder:
    """Return `Beam()`, with cut hypotheses among the finished ones if that is the model's order."""
    selector = Defaults.of(model).selector
    return Beam() if isinstance(selector, MostProbable) else Selected(Beam(), selector)


def default_npad(model: Model[Any]) -> NPAD:
    """Return NPAD over greedy search with the model's default chains, noise and selector."""
    defaults = Defaults.of(model)
    return NPAD(chains=defaults.chains, noise=defaults.noise, selector=defaults.selector)


def decoder_with_texts(decoder: Decoder, text: Callable[[tuple[int, ...]], str]) -> Decoder:
    """Let a decoder's MBR compare texts instead of tokens; return other decoders as they are."""
    if not isinstance(decoder, NPAD | Selected | MBRDecoding):
        return decoder
    selector = with_texts(decoder.selector, text)
    return decoder if selector is decoder.selector else replace(decoder, selector=selector)


def is_mbr_on_a_beam(decoder: Decoder) -> bool:
    """Return whether MBR selects from the list of one beam, whose candidates are too much alike."""
    if isinstance(decoder, NPAD):
        if decoder.chains > 1 or decoder.candidates != "all":
            return False
    elif not isinstance(decoder, Selected):
        return False
    by_mbr = isinstance(innermost_selector(decoder.selector), MBR)
    return by_mbr and isinstance(decoder.inner, Beam | Diverse)
