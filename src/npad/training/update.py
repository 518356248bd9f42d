"""One update of the weights. What it does depends on the recipe, the data and its number, and on nothing before it."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from npad.model import untouched
from npad.models.cgru.model import AttentionModel
from npad.noise.random import stable_hash
from npad.training.batches import Batcher, Index
from npad.training.cuda_graphs import Captured
from npad.training.likelihood import nll
from npad.training.noise import TrainingNoise
from npad.training.processes import Processes
from npad.training.recipe import Recipe
from npad.training.store import Corpus

GPU_GRID = (16, 4)  # sentences, length: few shapes, each of which is captured as a graph


@dataclass
class Updater:
    """A model, and what changes it."""

    model: AttentionModel
    corpus: Corpus
    recipe: Recipe
    device: torch.device
    processes: Processes = field(default_factory=Processes)

    def __post_init__(self) -> None:
        gpu = self.device.type == "cuda"
        self.model.to(self.device).train()
        if self.recipe.noise is not None:
            self.recipe.noise.check(self.model)
        self.batcher = Batcher(
            self.corpus, self.model.special, self.recipe.batch, GPU_GRID if gpu else (1, 1)
        )
        self.optimiser = self.recipe.optimise(self.model.parameters(), self.device)
        self.features = Captured(self.model) if gpu else None

    def update(self, pairs: Index, number: int) -> Tensor:
        """Descend along the gradient of some pairs; [their summed NLL, the gradient's norm before it was clipped]."""
        loss = self.gradient(pairs, number)
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), self.recipe.clip)
        self.optimiser.step()
        self.optimiser.zero_grad()
        return torch.stack([loss, norm.detach()])

    def gradient(self, pairs: Index, number: int) -> Tensor:
        """The gradient of the mean over sentences of their summed NLL; returns the sum over all of them."""
        torch.manual_seed(stable_hash(f"{self.recipe.seed} {number} {self.processes.rank}"))
        share, loss = self.processes.share(pairs), torch.zeros((), device=self.device)
        if len(share):
            batch = self.batcher.batch(share).to(self.device)
            noise: Any = lambda step: untouched  # noqa: E731
            if self.recipe.noise is not None:
                numbers = torch.full_like(batch.ids, number)
                noise = TrainingNoise(self.recipe.noise, self.recipe.seed, batch.ids, numbers)
            with mixed(self.recipe, self.device):
                summed = nll(self.model, batch, noise, self.features)
            (summed / len(pairs)).backward()  # type: ignore[no-untyped-call]
            loss = summed.detach()
        self.processes.add_gradients(self.model.parameters())
        return self.processes.add(loss)


def mixed(recipe: Recipe, device: torch.device) -> AbstractContextManager[Any]:
    """Products in the recipe's precision; weights and sums stay in float32."""
    return torch.autocast(device.type, torch.bfloat16, enabled=recipe.precision == "bfloat16")
