"""Minimum Bayes risk with candidates from one decoder and pseudo-references from another.

Candidates should be good, as a beam's are; references should stand for the model's distribution, as
samples do. With one set for both, one of the two is a compromise.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from torch import Tensor

from npad.errors import InvalidInput
from npad.hypotheses import Hypotheses
from npad.model import Capabilities, Model
from npad.rescoring.strategies import rescore
from npad.rows import Problems
from npad.search.beam import Beam
from npad.search.decoder import Cost, Decoder
from npad.search.sampling import Sampling
from npad.search.selected import AllFinished
from npad.selectors import MBR, Selector, cut_competes, innermost_selector, rank
from npad.specs import name_of_kind
from npad.validation import brief


@dataclass(frozen=True)
class MBRDecoding(Decoder):
    """Rank a decoder's candidates by utility against another's.

    The candidates are ranked by their expected utility against pseudo-references.
    `MBRDecoding(NPAD(), Sampling(100))` returns the distinct candidates, best first. Each reference
    counts as often as it was found, or by its probability with `ModelMBR` (Jinnai et al., 2023).
    Cost: that of both decoders, and n · m utilities for n candidates and m distinct references.

    Attributes:
        inner: the decoder whose candidates are ranked: all that a beam finished, NPAD's distinct
            ones.
        pseudo_references: the decoder whose hypotheses are the pseudo-references.
        selector: `MBR` or `ModelMBR`, with its utility; or `WithCut` around it.
    """

    rescores: ClassVar[bool] = True
    returns_several: ClassVar[bool] = True
    compared: ClassVar[bool] = False
    example: ClassVar[str] = '--width 10 --pseudo-references "sampling(samples=50)"'
    page: ClassVar[str] = "decoding.md#selectors"

    inner: Decoder = field(
        default_factory=Beam, metadata={"help": "the decoder whose candidates are ranked"}
    )
    pseudo_references: Decoder = field(
        default_factory=Sampling,
        metadata={"help": "the decoder of the pseudo-references, as sampling(samples=100)"},
    )
    selector: Selector = field(
        default_factory=MBR, metadata={"help": "which candidate is returned"}
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(innermost_selector(self.selector), MBR):
            raise InvalidInput(
                "MBRDecoding compares candidates with references: its selector must be MBR() or "
                f"ModelMBR(), not {brief(self.selector)}"
            )

    @property
    def cost(self) -> Cost:
        utilities = self.inner.rows * self.pseudo_references.rows
        return super().cost + Cost(utilities=utilities)

    @property
    def title(self) -> str:
        kind = name_of_kind(type(innermost_selector(self.selector)))
        return f"{self.inner.title}, {kind} by {self.pseudo_references.title}"

    def search(self, model: Model[Any], state: Any, problems: Problems) -> Hypotheses:
        candidates = self._found(self.inner, model, state, problems)
        references = self._found(self.pseudo_references, model, state, problems)
        return rank(candidates, AgainstReferences(self.selector, references))

    def _found(
        self, decoder: Decoder, model: Model[Any], state: Any, problems: Problems
    ) -> Hypotheses:
        """Return the distinct hypotheses of a decoder, with clean scores."""
        decoder = decoder.all_candidates()
        if not cut_competes(self.selector):
            decoder = AllFinished(decoder)
        found = decoder.search(model, state, problems).cpu()
        if found.count is None:  # NPAD and MBR have merged and counted theirs
            found = found.distinct().hypotheses
        modified = Capabilities.of(model).modified_scores
        return rescore(model, state, found) if modified else found


@dataclass(frozen=True)
class AgainstReferences:
    """Select by expected utility against given references."""

    selector: Selector
    references: Hypotheses

    @property
    def cut_competes(self) -> bool:
        return cut_competes(self.selector)

    def __call__(self, candidates: Hypotheses) -> Tensor:
        mbr = innermost_selector(self.selector)
        assert isinstance(mbr, MBR)
        return mbr.expected_utility(candidates, self.references)
