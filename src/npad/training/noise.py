"""Noise-aware training, the paper's first open question: the noise of decoding, met in training already."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from npad.errors import InvalidInput
from npad.noise.distributions import Orthogonal
from npad.noise.noisy import Noise, Perturbation
from npad.noise.random import Keys


@dataclass(frozen=True)
class TrainingNoise:
    """The noise of each step of one batch, keyed as in decoding; the update stands in for the chain."""

    noise: Noise
    seed: int
    ids: Tensor  # [rows], the pairs' places in the corpus
    updates: Tensor  # [rows], which update this is

    def __call__(self, step: int) -> Perturbation:
        steps = torch.full_like(self.ids, step)
        keys = Keys(self.seed, self.ids, self.updates, steps, torch.zeros_like(steps))
        sigma = torch.full_like(steps, float(self.noise.sigma), dtype=torch.float32)  # type: ignore[arg-type]
        return Perturbation(
            self.noise,
            keys,
            sigma * self.noise.schedule(steps.to(torch.float32), torch.ones_like(sigma)),
        )


def ensure_trainable(noise: Noise) -> None:
    """Refuse what has no meaning in training."""
    if isinstance(noise.sigma, tuple):
        raise InvalidInput(f"training takes one sigma, not one a chain: {noise.sigma}")
    part: object = noise.distribution
    while part is not None:
        if isinstance(part, Orthogonal):
            raise InvalidInput(
                "Orthogonal noise relates the chains of a sentence, and training has one; use another"
            )
        part = getattr(part, "base", None)
    if getattr(noise.schedule, "uses_entropy", True):
        kind = type(noise.schedule).__name__
        raise InvalidInput(
            f"{kind} follows the output's entropy, which training does not wait for; use another schedule"
        )
