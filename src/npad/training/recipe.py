"""The recipe of training: every hyper-parameter except those of the data and the model."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import nn

from npad.distributions import Orthogonal
from npad.errors import InvalidInput
from npad.noise.noisy import Noise, noise_as_names, noise_from_names
from npad.validation import brief, ensure_bool, ensure_choice, ensure_integer, ensure_number

STOPPING_CRITERIA = ("epochs", "updates", "patience")  # fields that may change on resume
MAX_LEARNING_RATE = 3.4e38  # the largest number of float32
LEARNING_RATES = {"adam": 1e-3, "adadelta": 1.0, "sgd": 0.1}  # by default


@dataclass(frozen=True)
class Recipe:
    """Hyper-parameters of maximum likelihood training.

    Attributes:
        optimiser: "adam", "adadelta" (ρ 0.95, ε 1e-6, as in the paper) or "sgd".
        learning_rate: None for the optimiser's default.
        decay: factor of the learning rate after a validation without a new best.
        anneal: lower the learning rate to zero along a cosine over all epochs.
        clip: the largest norm of the gradient; a larger gradient is scaled down to it.
        batch: tokens per side of a batch, padding included.
        epochs: epochs after which to stop.
        updates: updates after which to stop, or None.
        patience: validations without a new best after which to stop.
        validate: updates between validations, or None to validate at the end of every epoch.
        checkpoint: updates between checkpoints; a validation saves one, too.
        precision: of matrix products, "float32" or "bfloat16".
        seed: of the initialisation, the order of the pairs, dropout and noise.
        noise: noise in the model while training, as in decoding, or None.
        augment: change pictures and sounds a little in every update.
    """

    optimiser: str = "adam"
    learning_rate: float | None = None
    decay: float = 1.0
    anneal: bool = False
    clip: float = 1.0
    batch: int = 4096
    epochs: int = 20
    updates: int | None = None
    patience: int = 5
    validate: int | None = None
    checkpoint: int = 1000
    precision: str = "float32"
    seed: int = 0
    noise: Noise | None = None
    augment: bool = True

    def __post_init__(self) -> None:
        ensure_choice("optimiser", self.optimiser, tuple(LEARNING_RATES))
        ensure_choice("precision", self.precision, ("float32", "bfloat16"))
        if self.learning_rate is not None:
            ensure_number("learning_rate", self.learning_rate, above=0)
            if self.learning_rate > MAX_LEARNING_RATE:
                rule = f"learning_rate must be at most {MAX_LEARNING_RATE}"
                raise InvalidInput(f"{rule}, not {self.learning_rate}")
        ensure_number("clip", self.clip, above=0)
        ensure_number("decay", self.decay, above=0)
        for name in ("batch", "epochs", "patience", "checkpoint"):
            ensure_integer(name, getattr(self, name), 1)
        for name in ("updates", "validate"):
            if getattr(self, name) is not None:
                ensure_integer(name, getattr(self, name), 1)
        ensure_integer("seed", self.seed, 0)
        ensure_bool("anneal", self.anneal)
        ensure_bool("augment", self.augment)
        if self.noise is not None and not isinstance(self.noise, Noise):
            raise InvalidInput(
                f"noise must be a Noise, such as Noise(0.3), or None, not {brief(self.noise)}"
            )
        if self.noise is not None:
            ensure_trainable(self.noise)

    @property
    def rate(self) -> float:
        """The initial learning rate."""
        default = LEARNING_RATES[self.optimiser]
        return default if self.learning_rate is None else self.learning_rate

    def optimise(
        self, parameters: Iterable[nn.Parameter], device: torch.device
    ) -> torch.optim.Optimizer:
        """Return an optimiser of `parameters`."""
        if self.optimiser == "adam":
            return torch.optim.Adam(parameters, self.rate, fused=device.type == "cuda")
        if self.optimiser == "adadelta":
            return torch.optim.Adadelta(parameters, self.rate, rho=0.95, eps=1e-6)
        return torch.optim.SGD(parameters, self.rate)

    def to_json(self) -> dict[str, Any]:
        """Return the fields as values that JSON can represent."""
        plain = {name: _plain(value) for name, value in asdict(replace(self, noise=None)).items()}
        noise = self.noise and {
            name: _plain(value) for name, value in noise_as_names(self.noise).items()
        }
        if self.augment:  # as before there was the field, so that older runs can be resumed
            del plain["augment"]
        return plain | {"noise": noise}

    @classmethod
    def from_json(cls, plain: dict[str, Any]) -> Recipe:
        """Build a recipe from what `to_json` returned."""
        noise = plain.get("noise")
        return cls(**(plain | {"noise": noise and noise_from_names(**noise)}))


def ensure_trainable(noise: Noise) -> None:
    """Refuse noise that needs several chains or the output's entropy, which training lacks.

    Raises:
        InvalidInput: the sigma, the distribution or the schedule cannot be trained with.
    """
    if isinstance(noise.sigma, tuple):
        raise InvalidInput(f"training takes one sigma, not one per chain: {noise.sigma}")
    part: object = noise.distribution
    while part is not None:
        if isinstance(part, Orthogonal):
            rule = "Orthogonal noise relates the chains of a sentence, and training has one"
            raise InvalidInput(f"{rule}; use another distribution")
        part = getattr(part, "base", None)
    if getattr(noise.schedule, "uses_entropy", True):
        kind = type(noise.schedule).__name__
        rule = f"{kind} follows the output's entropy, which training does not compute"
        raise InvalidInput(f"{rule}; use another schedule")


def _plain(value: Any) -> Any:
    """Convert a NumPy scalar to a Python number, for JSON."""
    return value.item() if isinstance(value, np.generic) else value
