"""How strong the noise is at each step: a factor of σ₀, from the step and the model's own uncertainty.

A schedule is any function of two float32 tensors, `step` [rows] from 1 and `entropy` [rows], that returns [rows].
Entropy is that of the last output distribution divided by its maximum log V; before the first symbol it is 1. One that
ignores the entropy says so by `uses_entropy = False`, which saves a pass over the logits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from npad.validation import ensure_integer, ensure_number


class Schedule(Protocol):
    """σ_t / σ₀ for each row."""

    def __call__(self, step: Tensor, entropy: Tensor) -> Tensor: ...


@dataclass(frozen=True)
class Annealed:
    """1/t, the paper's: strong while little is decided, then fading."""

    uses_entropy: ClassVar[bool] = False
    label: ClassVar[str] = "1/t"

    def __call__(self, step: Tensor, entropy: Tensor) -> Tensor:
        return step.reciprocal()


@dataclass(frozen=True)
class Constant:
    """The same at every step."""

    uses_entropy: ClassVar[bool] = False

    def __call__(self, step: Tensor, entropy: Tensor) -> Tensor:
        return torch.ones_like(entropy)


@dataclass(frozen=True)
class Power:
    """t^−p: `Power(1)` is the paper's, `Power(0.5)` fades more slowly, `Power(0)` not at all."""

    p: float = 0.5
    uses_entropy: ClassVar[bool] = False

    def __post_init__(self) -> None:
        ensure_number("Power's p", self.p, least=0)

    def __call__(self, step: Tensor, entropy: Tensor) -> Tensor:
        return step**-self.p


@dataclass(frozen=True)
class Linear:
    """A straight line from 1 at the first step to 0 after `steps` of them."""

    steps: int = 20
    uses_entropy: ClassVar[bool] = False

    def __post_init__(self) -> None:
        ensure_integer("Linear's steps", self.steps, 1)

    def __call__(self, step: Tensor, entropy: Tensor) -> Tensor:
        return (1 - (step - 1) / self.steps).clamp(min=0)


@dataclass(frozen=True)
class Cosine:
    """Half a cosine wave from 1 at the first step to 0 after `steps` of them."""

    steps: int = 20
    uses_entropy: ClassVar[bool] = False

    def __post_init__(self) -> None:
        ensure_integer("Cosine's steps", self.steps, 1)

    def __call__(self, step: Tensor, entropy: Tensor) -> Tensor:
        passed = ((step - 1) / self.steps).clamp(max=1)
        return (1 + torch.cos(math.pi * passed)) / 2


@dataclass(frozen=True)
class Exponential:
    """`decay` to the power t−1: each step the same fraction of the one before."""

    decay: float = 0.8
    uses_entropy: ClassVar[bool] = False

    def __post_init__(self) -> None:
        ensure_number("Exponential's decay", self.decay, above=0)

    def __call__(self, step: Tensor, entropy: Tensor) -> Tensor:
        return self.decay ** (step - 1)


@dataclass(frozen=True)
class FirstSteps:
    """1 for the first n steps, 0 after: choose how to begin, then follow the model."""

    n: int = 3
    uses_entropy: ClassVar[bool] = False

    def __post_init__(self) -> None:
        ensure_integer("FirstSteps' n", self.n, 1)

    def __call__(self, step: Tensor, entropy: Tensor) -> Tensor:
        return (step <= self.n).to(entropy.dtype)


@dataclass(frozen=True)
class Adaptive:
    """The entropy of the last output distribution, as a share of its maximum, to a power: noise where the model wavers.

    Before the first symbol there is no such distribution and the factor is 1. Costs a softmax over the vocabulary.
    """

    power: float = 1.0
    uses_entropy: ClassVar[bool] = True

    def __post_init__(self) -> None:
        ensure_number("Adaptive's power", self.power, above=0)

    def __call__(self, step: Tensor, entropy: Tensor) -> Tensor:
        return entropy**self.power
