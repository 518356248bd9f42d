"""What decoders default to on a model: NPAD's chains and noise, and the order of the candidates.

docs/decoding.md lists these defaults, and where a command differs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from npad.model import Capabilities
from npad.noise.noisy import Noise
from npad.selectors import MostProbable, Selector, WithCut

CHAINS = 50  # the most that the paper runs
TRANSFORMER_CHAINS = 10  # a row of a transformer costs more, in time and in memory
SIGMA = 0.3  # σ₀


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
