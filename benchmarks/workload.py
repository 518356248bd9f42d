"""An untrained model, and how fast a machine works on it.

It has random weights and never generates the end token, so that all machines do the same work. Its
operations are counted by the plain formulas of the model, whatever is computed in their place:
computing fewer counts as speed.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from npad.engine.cost import now
from npad.models.cgru.model import AttentionModel

NEVER = -1e4  # logit bias of the end token


@dataclass(frozen=True)
class Workload:
    """Sizes of an untrained model, and of what it decodes."""

    units: int = 1024
    embedding: int = 512
    vocabulary: int = 8000  # tokens
    source: int = 20  # tokens, end token included
    length: int = 20  # tokens generated

    def operations(self) -> int:
        """Return the operations of a row-step: two per weight of a matrix, and the attention's."""
        annotation = 2 * self.units  # both directions
        weights = 3 * self.units * (self.embedding + self.units) + self.units * annotation
        weights += 3 * self.units * (annotation + self.units)
        weights += self.embedding * (self.units + self.embedding + annotation)
        weights += self.embedding * self.vocabulary
        return 2 * weights + self.source * annotation * 6

    def sources(self, sentences: int) -> list[list[int]]:
        """Return random source sentences, without their end token."""
        generator = torch.Generator().manual_seed(0)
        shape = (sentences, self.source - 1)
        return torch.randint(1, self.vocabulary, shape, generator=generator).tolist()


def untrained(units: int, embedding: int, vocabulary: int) -> AttentionModel:
    """Return a model with random weights that never generates the end token."""
    torch.manual_seed(0)
    model = AttentionModel(vocabulary, vocabulary, units, embedding, initialisation="glorot").eval()
    with torch.no_grad():
        model.logits.bias[model.special.eos] = NEVER
    return model


def clock(work: Callable[[], Any], repeats: int, device: torch.device) -> float:
    """Return the median seconds that `work` takes, kernels of a GPU included."""
    return statistics.median(times_of(work, repeats, device))


def times_of(work: Callable[[], Any], repeats: int, device: torch.device) -> list[float]:
    """Return the seconds of each repetition of `work`, kernels of a GPU included."""
    times = []
    for _ in range(repeats):
        start = now(device)
        work()
        times.append(now(device) - start)
    return times


def matrix_rate(device: torch.device, dtype: torch.dtype) -> float:
    """Return the operations per second of a large matrix product, at its fastest.

    Shares are of what the machine can do, not of what it did while another process ran.
    """
    size = 8192 if device.type == "cuda" else 2048
    left, right = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    for _ in range(3):
        left @ right
    return 2 * size**3 / min(times_of(lambda: left @ right, 10, device))
