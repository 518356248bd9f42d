"""An update of the weights, a function of the weights, the recipe, the pairs and its number."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from npad.model import untouched
from npad.models.cgru.model import AttentionModel
from npad.noise.random import stable_hash
from npad.training.augmentation import augmented
from npad.training.batches import Batcher
from npad.training.cuda_graphs import CapturedFeatures
from npad.training.likelihood import nll
from npad.training.noise import TrainingNoise
from npad.training.processes import Processes
from npad.training.recipe import Recipe
from npad.training.sources import Index
from npad.training.store import Corpus

GPU_GRID = (16, 4)  # sentences, length: few shapes, since each is captured as a graph


@dataclass
class Updater:
    """A model with its optimiser and data."""

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
        grid = GPU_GRID if gpu else (1, 1)
        self.batcher = Batcher(self.corpus, self.model.special, self.recipe.batch, grid)
        self.optimiser = self.recipe.optimise(self.model.parameters(), self.device)
        self.features = CapturedFeatures(self.model) if gpu else None

    def update(self, pairs: Index, number: int) -> Tensor:
        """Take a gradient step on `pairs`.

        Args:
            pairs: positions in the corpus.
            number: the number of the update, which keys dropout, noise and augmentation.

        Returns:
            [2], the summed NLL of the pairs and the norm of the gradient before clipping.
        """
        loss = self.gradient(pairs, number)
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), self.recipe.clip)
        self.optimiser.step()
        self.optimiser.zero_grad()
        return torch.stack([loss, norm.detach()])

    def gradient(self, pairs: Index, number: int) -> Tensor:
        """Accumulate the gradient of the mean NLL over sentences; return the summed NLL."""
        torch.manual_seed(stable_hash(f"{self.recipe.seed} {number} {self.processes.rank}"))
        share, loss = self.processes.share(pairs), torch.zeros((), device=self.device)
        if len(share):
            batch = self.batcher.batch(share).to(self.device)
            if self.recipe.augment:
                batch = augmented(batch, self.model.source, self.recipe.seed, number)
            noise: Any = lambda step: untouched  # noqa: E731
            if self.recipe.noise is not None:
                numbers = torch.full_like(batch.ids, number)
                noise = TrainingNoise(self.recipe.noise, self.recipe.seed, batch.ids, numbers)
            with mixed_precision(self.recipe, self.device):
                summed = nll(self.model, batch, noise, self.features)
            (summed / len(pairs)).backward()  # type: ignore[no-untyped-call]
            loss = summed.detach()
        self.processes.add_gradients(self.model.parameters())
        return self.processes.add(loss)


def mixed_precision(recipe: Recipe, device: torch.device) -> AbstractContextManager[Any]:
    """Compute matrix products in the recipe's precision; weights and sums stay in float32."""
    return torch.autocast(device.type, torch.bfloat16, enabled=recipe.precision == "bfloat16")
