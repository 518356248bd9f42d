"""An update of the weights, a function of the weights, the recipe, the pairs and its number."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, distributed, nn

from npad.errors import InvalidInput
from npad.model import untouched
from npad.models.actors import Actor, Trajectory
from npad.models.cgru.model import AttentionModel
from npad.noise.random import stable_hash
from npad.training.batches import Batcher, Buckets, nll
from npad.training.cuda_graphs import CapturedFeatures
from npad.training.randomness import TrainingNoise, augmented
from npad.training.recipe import Recipe
from npad.training.sources import Index, Side
from npad.training.store import PairCorpus

GPU_GRID = (16, 4)  # sentences, length: few shapes, since each is captured as a graph
TIMEOUT = timedelta(days=1)  # of a collective; the others wait while the first prepares the data


@dataclass(frozen=True)
class Replicas:
    """The rank of this process among `world` processes that train one model (torchrun).

    Each takes a share of the sentences of every batch, and they add their gradients.
    """

    rank: int = 0
    world: int = 1

    @property
    def first(self) -> bool:
        """Whether this process writes and prints."""
        return self.rank == 0

    def share(self, pairs: Index) -> Index:
        """Return this process's part of a batch, possibly empty."""
        return pairs[self.rank :: self.world]

    def add(self, tensor: Tensor) -> Tensor:
        """Sum a tensor over all processes, in place."""
        if self.world > 1:
            distributed.all_reduce(tensor)
        return tensor

    def add_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Sum every gradient over all processes, in one message."""
        if self.world == 1:
            return
        gradients = []
        for parameter in parameters:
            if parameter.grad is None:  # this process had no pairs
                parameter.grad = torch.zeros_like(parameter)
            gradients.append(parameter.grad)
        total = self.add(torch.cat([gradient.flatten() for gradient in gradients]))
        parts = torch.split(total, [gradient.numel() for gradient in gradients])
        for gradient, part in zip(gradients, parts, strict=True):
            gradient.copy_(part.view_as(gradient))


@contextmanager
def joined(device: torch.device) -> Iterator[Replicas]:
    """Join the processes that torchrun started, or yield this process alone.

    Raises:
        InvalidInput: there are fewer GPUs than processes.
    """
    world = int(os.environ.get("WORLD_SIZE", 1))
    if device.type == "cuda":
        number = int(os.environ["LOCAL_RANK"]) if world > 1 else device.index or 0
        gpus = torch.cuda.device_count()
        if number >= gpus:
            way_out = "start fewer, or take --device cpu"
            raise InvalidInput(f"process {number + 1} has no GPU: there are {gpus}; {way_out}")
        torch.cuda.set_device(number)
    if world == 1:
        yield Replicas()
        return
    distributed.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=TIMEOUT)
    try:
        yield Replicas(distributed.get_rank(), world)
    finally:
        distributed.destroy_process_group()


class Updater(ABC):
    """Takes gradient steps on a network, whose parameters are all trained.

    Attributes:
        network: what is trained.
        model: the model that scores the pairs: the network itself, or what it steers.
        corpus: the training pairs.
        batcher: cuts them into batches.
        optimiser: of the network's parameters.
        features: the recurrence captured as CUDA graphs, on a GPU.
    """

    first_number: ClassVar[int] = 1  # of the first update; keys what is random, and the cosine

    def __init__(
        self,
        network: nn.Module,
        model: AttentionModel,
        corpus: PairCorpus,
        batcher: Batcher,
        recipe: Recipe,
        device: torch.device,
        replicas: Replicas,
    ) -> None:
        self.network, self.model, self.corpus, self.batcher = network, model, corpus, batcher
        self.recipe, self.device, self.replicas = recipe, device, replicas
        self.network.to(device).train()
        self.optimiser = recipe.optimise(network.parameters(), device)
        self.features = CapturedFeatures(model) if device.type == "cuda" else None

    @abstractmethod
    def loss(self, pairs: Index, number: int) -> Tensor:
        """Return the summed NLL [] of the pairs, with its graph."""

    def update(self, pairs: Index, number: int) -> Tensor:
        """Take a gradient step on `pairs`.

        Args:
            pairs: positions in the corpus.
            number: the number of the update, which keys dropout, noise and augmentation.

        Returns:
            [2], the summed NLL of the pairs and the norm of the gradient before clipping.
        """
        loss = self.gradient(pairs, number)
        norm = nn.utils.clip_grad_norm_(self.network.parameters(), self.recipe.clip)
        self.optimiser.step()
        self.optimiser.zero_grad()
        return torch.stack([loss, norm.detach()])

    def gradient(self, pairs: Index, number: int) -> Tensor:
        """Accumulate the gradient of the mean NLL over sentences; return the summed NLL."""
        torch.manual_seed(stable_hash(self.key(number)))
        share, loss = self.replicas.share(pairs), torch.zeros((), device=self.device)
        if len(share):
            summed = self.loss(share, number)
            (summed / len(pairs)).backward()  # type: ignore[no-untyped-call]
            loss = summed.detach()
        self.replicas.add_gradients(self.network.parameters())
        return self.replicas.add(loss)

    def key(self, number: int) -> str:
        """Return the key of an update's dropout."""
        return f"{self.recipe.seed} {number} {self.replicas.rank}"


class ModelUpdater(Updater):
    """Updates of all weights of a model."""

    def __init__(
        self,
        model: AttentionModel,
        corpus: PairCorpus,
        recipe: Recipe,
        device: torch.device,
        replicas: Replicas | None = None,
    ) -> None:
        if recipe.noise is not None:
            recipe.noise.check(model)
        grid = GPU_GRID if device.type == "cuda" else (1, 1)
        batcher = Batcher(corpus, model.special, recipe.batch, grid)
        super().__init__(model, model, corpus, batcher, recipe, device, replicas or Replicas())

    def loss(self, pairs: Index, number: int) -> Tensor:
        batch = self.batcher.batch(pairs).to(self.device)
        if self.recipe.augment:
            batch = augmented(batch, self.model.source, self.recipe.seed, number)
        noise: Any = lambda step: untouched  # noqa: E731
        if self.recipe.noise is not None:
            numbers = torch.full_like(batch.ids, number)
            noise = TrainingNoise(self.recipe.noise, self.recipe.seed, batch.ids, numbers)
        with mixed_precision(self.recipe, self.device):
            return nll(self.model, batch, noise, self.features)


class ActorUpdater(Updater):
    """Updates of an actor, by back-propagation through the frozen model, in teacher forcing.

    The loss is that of training a model, with the actor's pushes in its transitions. The model may
    drop units while the actor learns: on sentences that it was trained on it is surer than on new
    ones, and dropout takes some of that away.
    """

    first_number = 0  # as in npad 0.2, whose actors are trained alike

    def __init__(
        self,
        model: AttentionModel,
        actor: Actor,
        pairs: PairCorpus,
        recipe: Recipe,
        dropout: float = 0.0,
    ) -> None:
        self.actor, self.dropout, self.trajectory = actor, dropout, Trajectory(actor)
        kind = Buckets if model.device.type == "cuda" else Batcher
        batcher = kind(pairs, model.special, recipe.batch)
        model.requires_grad_(False).eval()
        super().__init__(actor, model, pairs, batcher, recipe, model.device, Replicas())

    def loss(self, pairs: Index, number: int) -> Tensor:
        batch = self.batcher.batch(pairs).to(self.device)
        with dropping(self.model, self.dropout), mixed_precision(self.recipe, self.device):
            return nll(self.model, batch, self.trajectory, self.features)

    def key(self, number: int) -> str:
        return f"{self.recipe.seed} {number}"


def mixed_precision(recipe: Recipe, device: torch.device) -> AbstractContextManager[Any]:
    """Compute matrix products in the recipe's precision; weights and sums stay in float32."""
    return torch.autocast(device.type, torch.bfloat16, enabled=recipe.precision == "bfloat16")


@contextmanager
def dropping(model: AttentionModel, probability: float) -> Iterator[None]:
    """Drop units of a model in evaluation mode, whatever dropout it was trained with."""
    drop = model.drop
    own = drop.p
    drop.p = probability
    drop.train()
    try:
        yield
    finally:
        drop.p = own
        drop.eval()


@torch.no_grad()
def begin_with_frequencies(model: AttentionModel, target: Side) -> None:
    """Set the output's bias to the logarithm of each token's frequency, smoothed by one count.

    Otherwise it is learnt slowly, and meanwhile an encoder of pictures learns to give all of them
    the same large annotations instead.
    """
    counts = np.bincount(target.tokens, minlength=model.logits.out_features) + 1.0
    counts[model.special.eos] += len(target.ends)
    model.logits.bias.copy_(torch.from_numpy(np.log(counts / counts.sum())))
