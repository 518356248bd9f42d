"""What decoders default to on a model: NPAD's chains and noise, and the order of the candidates.

docs/decoding.md lists these defaults, and where a command differs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from npad.model import Capabilities, Model
from npad.noise.noisy import Noise
from npad.search.beam import Beam
from npad.search.decoder import Decoder
from npad.search.npad import CHAINS, NPAD, SIGMA, TRANSFORMER_CHAINS
from npad.search.selected import with_selector
from npad.selectors import MostProbable, Selector, WithCut


@dataclass(frozen=True)
class Defaults:
    """The defaults of decoders on a model, where the user does not choose.

    Attributes:
        noise: NPAD's. A recurrent state lies between −1 and 1; the scale of a transformer's hidden
            states differs by layer and model, so that its noise is relative.
        selector: `WithCut()` for models that continue a text.
        chains: NPAD's; fewer for models whose noise is relative, which are transformers.
    """

    noise: Noise = field(default_factory=lambda: Noise(SIGMA))
    selector: Selector = field(default_factory=MostProbable)
    chains: int = CHAINS

    @classmethod
    def of(cls, model: Any) -> Defaults:
        """Return the defaults of a model, from its capabilities."""
        capabilities = Capabilities.of(model)
        return cls.from_facts(capabilities.relative_noise, capabilities.open_ended)

    @classmethod
    def from_facts(cls, relative_noise: float | None, open_ended: bool) -> Defaults:
        """Return the defaults of a model with these two capabilities."""
        selector = WithCut() if open_ended else MostProbable()
        if relative_noise is None:
            return cls(selector=selector)
        return cls(Noise(relative_noise, relative=True), selector, TRANSFORMER_CHAINS)


def default_decoder(model: Model[Any]) -> Decoder:
    """Return `Beam()`, with cut hypotheses among the finished ones if that is the model's order."""
    return with_selector(Beam(), Defaults.of(model).selector)


def default_npad(model: Model[Any]) -> NPAD:
    """Return NPAD over greedy search with the model's default chains, noise and selector."""
    return NPAD(**NPAD.defaults_on(Defaults.of(model)))
