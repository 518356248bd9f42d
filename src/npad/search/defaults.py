"""What decoders default to on a model: the noise of NPAD, and the order of the candidates."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from npad.model import Capabilities
from npad.noise.noisy import Noise
from npad.search.selectors import MostProbable, Selector, WithCut


@dataclass(frozen=True)
class Defaults:
    """The defaults of decoders on a model, where the user does not choose.

    Attributes:
        noise: NPAD's. A recurrent state lies between −1 and 1; the scale of a transformer's hidden
            states differs by layer and model, so that its noise is relative.
        selector: `WithCut()` for models that continue a text.
    """

    noise: Noise = field(default_factory=lambda: Noise(0.3))
    selector: Selector = field(default_factory=MostProbable)

    @classmethod
    def of(cls, model: Any) -> Defaults:
        """Return the defaults of a model, from its capabilities."""
        capabilities = Capabilities.of(model)
        return cls.from_facts(capabilities.relative_noise, capabilities.open_ended)

    @classmethod
    def from_facts(cls, relative_noise: float | None, open_ended: bool) -> Defaults:
        """Return the defaults of a model with these two capabilities."""
        noise = Noise(0.3) if relative_noise is None else Noise(relative_noise, relative=True)
        return cls(noise, WithCut() if open_ended else MostProbable())
