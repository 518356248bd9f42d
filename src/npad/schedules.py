"""Noise schedules: σ_t / σ₀ as a function of the step and of the model's uncertainty.

A schedule is any function of two float32 tensors, `step` [rows] from 1 and `entropy` [rows], that
returns [rows]. The entropy is that of the last output distribution divided by its maximum log V;
before the first token it is 1. A schedule that ignores the entropy sets `uses_entropy = False`,
which saves a pass over the logits. To add one, write its class here and list it in `SCHEDULES`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from npad.specs import Registry
from npad.validation import ensure_fields


class Schedule(Protocol):
    """A noise schedule."""

    def __call__(self, step: Tensor, entropy: Tensor) -> Tensor:
        """Return σ_t / σ₀ [rows], given step [rows] from 1 and entropy [rows] in [0, 1]."""


class Checked:
    """A schedule whose fields keep the bounds in their metadata; by default of the step alone."""

    uses_entropy: ClassVar[bool] = False

    def __post_init__(self) -> None:
        ensure_fields(self, owned=True)


@dataclass(frozen=True)
class Annealed(Checked):
    """σ_t = σ₀ / t, the paper's schedule: strong at first, then fading."""

    label: ClassVar[str] = "1/t"

    def __call__(self, step: Tensor, entropy: Tensor) -> Tensor:
        return step.reciprocal()


@dataclass(frozen=True)
class Constant(Checked):
    """σ_t = σ₀ at every step."""

    def __call__(self, step: Tensor, entropy: Tensor) -> Tensor:
        return torch.ones_like(entropy)


@dataclass(frozen=True)
class Power(Checked):
    """σ_t = σ₀ · t^−p: `Power(1)` is the paper's, `Power(0.5)` fades more slowly."""

    p: float = field(default=0.5, metadata={"minimum": 0})

    def __call__(self, step: Tensor, entropy: Tensor) -> Tensor:
        return step**-self.p


@dataclass(frozen=True)
class Linear(Checked):
    """Fall linearly from σ₀ at the first step to 0 after `steps` steps."""

    steps: int = field(default=20, metadata={"minimum": 1})

    def __call__(self, step: Tensor, entropy: Tensor) -> Tensor:
        return (1 - (step - 1) / self.steps).clamp(min=0)


@dataclass(frozen=True)
class Cosine(Checked):
    """Fall as half a cosine wave from σ₀ at the first step to 0 after `steps` steps."""

    steps: int = field(default=20, metadata={"minimum": 1})

    def __call__(self, step: Tensor, entropy: Tensor) -> Tensor:
        progress = ((step - 1) / self.steps).clamp(max=1)
        return (1 + torch.cos(math.pi * progress)) / 2


@dataclass(frozen=True)
class Exponential(Checked):
    """σ_t = σ₀ · decay^(t−1)."""

    decay: float = field(default=0.8, metadata={"above": 0})

    def __call__(self, step: Tensor, entropy: Tensor) -> Tensor:
        return self.decay ** (step - 1)


@dataclass(frozen=True)
class FirstSteps(Checked):
    """σ₀ for the first n steps, then no noise: vary the beginning, then follow the model."""

    n: int = field(default=3, metadata={"minimum": 1})

    def __call__(self, step: Tensor, entropy: Tensor) -> Tensor:
        return (step <= self.n).to(entropy.dtype)


@dataclass(frozen=True)
class Adaptive(Checked):
    """σ_t = σ₀ · (entropy / log V)^power: more noise where the model is uncertain.

    The entropy is that of the last output distribution; before the first token the factor is 1.
    Cost: a softmax over the vocabulary per step.
    """

    power: float = field(default=1.0, metadata={"above": 0})
    uses_entropy: ClassVar[bool] = True

    def __call__(self, step: Tensor, entropy: Tensor) -> Tensor:
        return entropy**self.power


SCHEDULES = Registry(
    "schedule",
    Schedule,
    *(Annealed, Constant, Power, Linear, Cosine, Exponential, FirstSteps, Adaptive),
)
