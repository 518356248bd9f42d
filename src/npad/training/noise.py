"""Noise-aware training, the paper's first open question: train with the noise of decoding."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from npad.distributions import Orthogonal
from npad.errors import InvalidInput
from npad.noise.noisy import Noise, Perturbation
from npad.noise.random import Keys


@dataclass(frozen=True)
class TrainingNoise:
    """The noise of a batch at each step, keyed as in decoding, with the update as the chain."""

    noise: Noise
    seed: int
    ids: Tensor  # [rows], the pairs' positions in the corpus
    updates: Tensor  # [rows], the number of the update

    def __call__(self, step: int) -> Perturbation:
        """Return the perturbation of a step, counted from 1."""
        steps = torch.full_like(self.ids, step)
        keys = Keys(self.seed, self.ids, self.updates, steps, torch.zeros_like(steps))
        sigma = torch.full_like(steps, float(self.noise.sigma), dtype=torch.float32)  # type: ignore[arg-type]
        scale = self.noise.schedule(steps.to(torch.float32), torch.ones_like(sigma))
        return Perturbation(self.noise, keys, sigma * scale)


def ensure_trainable(noise: Noise) -> None:
    """Refuse noise that needs several chains or the output's entropy, which training lacks.

    Raises:
        InvalidInput: the sigma, the distribution or the schedule cannot be trained with.
    """
    if isinstance(noise.sigma, tuple):
        raise InvalidInput(f"training takes one sigma, not one a chain: {noise.sigma}")
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
