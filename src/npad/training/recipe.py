"""The recipe of training: every hyper-parameter except those of the data and the model."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from torch import nn

from npad.distributions import Orthogonal
from npad.errors import InvalidInput
from npad.noise.noisy import Noise, noise_as_names, noise_from_names
from npad.validation import ensure_fields

STOPPING_CRITERIA = ("epochs", "updates", "patience")  # fields that may change on resume
MAX_LEARNING_RATE = 3.4e38  # about the largest number of float32
POSITIVE = {"minimum": 1}
LEARNING_RATES = {"adam": 1e-3, "adadelta": 1.0, "sgd": 0.1}  # by default


@dataclass(frozen=True)
class Recipe:
    """Hyper-parameters of maximum likelihood training.

    The options of `npad train` are these fields.
    """

    optimiser: Literal["adam", "adadelta", "sgd"] = field(
        default="adam",
        metadata={
            "help": "`adam`, `adadelta` (ρ 0.95, ε 1e-6, as in the paper) or `sgd`",
            "shown": "the preset's",
        },
    )
    learning_rate: float | None = field(
        default=None,
        metadata={
            "help": "Learning rate",
            "flags": ("--lr",),
            "shown": ", ".join(f"{name} {rate:g}" for name, rate in LEARNING_RATES.items()),
            "above": 0,
            "below": MAX_LEARNING_RATE,
        },
    )
    decay: float = field(
        default=1.0,
        metadata={"help": "Learning-rate factor after a validation without a new best", "above": 0},
    )
    anneal: bool = field(
        default=False, metadata={"help": "Anneal the learning rate to zero along a cosine"}
    )
    clip: float = field(
        default=1.0,
        metadata={"help": "Maximum gradient norm; larger gradients are rescaled", "above": 0},
    )
    batch: int = field(
        default=4096, metadata={"help": "Tokens per side of a batch, padding included"} | POSITIVE
    )
    epochs: int = field(default=20, metadata={"help": "Maximum epochs"} | POSITIVE)
    updates: int | None = field(default=None, metadata={"help": "Maximum updates"} | POSITIVE)
    patience: int = field(
        default=5, metadata={"help": "Validations without a new best before stopping"} | POSITIVE
    )
    validate: int | None = field(
        default=None,
        metadata={"help": "Updates between validations", "shown": "an epoch"} | POSITIVE,
    )
    checkpoint: int = field(
        default=1000,
        metadata={"help": "Updates between checkpoints; a validation saves one as well"} | POSITIVE,
    )
    precision: Literal["float32", "bfloat16"] = field(
        default="float32",
        metadata={
            "help": "`float32`, or `bfloat16` for matrix products",
            "shown": "bfloat16 on a GPU",
        },
    )
    seed: int = field(
        default=0,
        metadata={"help": "Seed of the weights, the order, dropout and noise", "minimum": 0},
    )
    noise: Noise | None = field(
        default=None, metadata={"rule": "a Noise, such as Noise(0.3), or None"}
    )
    augment: bool = field(
        default=True, metadata={"help": "Change pictures and sounds a little in every update"}
    )

    def __post_init__(self) -> None:
        ensure_fields(self)
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
        plain = {name: _plain(value) for name, value in asdict(self).items()}
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
