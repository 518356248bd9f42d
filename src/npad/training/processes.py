"""Several processes that train as one, started by torchrun: each takes a share of every batch."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
from torch import Tensor, distributed, nn

from npad.errors import InvalidInput
from npad.training.batches import Index


@dataclass(frozen=True)
class Processes:
    """Which of how many processes this one is."""

    rank: int = 0
    world: int = 1

    @property
    def first(self) -> bool:
        """Whether this is the one that writes and prints."""
        return self.rank == 0

    def share(self, pairs: Index) -> Index:
        """This process's part of a batch; it may be empty."""
        return pairs[self.rank :: self.world]

    def add(self, tensor: Tensor) -> Tensor:
        """The sum over all processes, in place."""
        if self.world > 1:
            distributed.all_reduce(tensor)
        return tensor

    def add_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Each gradient becomes the sum over all processes, in one message."""
        if self.world == 1:
            return
        parameters = list(parameters)
        for parameter in parameters:
            if parameter.grad is None:  # this process had no pairs
                parameter.grad = torch.zeros_like(parameter)
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        total = self.add(torch.cat([gradient.flatten() for gradient in gradients]))
        parts = torch.split(total, [gradient.numel() for gradient in gradients])
        for gradient, part in zip(gradients, parts, strict=True):
            gradient.copy_(part.view_as(gradient))


@contextmanager
def joined(device: torch.device) -> Iterator[Processes]:
    """The processes that torchrun started, or this one alone."""
    world = int(os.environ.get("WORLD_SIZE", 1))
    if device.type == "cuda":
        number, there = (
            int(os.environ["LOCAL_RANK"]) if world > 1 else device.index or 0,
            torch.cuda.device_count(),
        )
        if number >= there:
            raise InvalidInput(
                f"process {number + 1} has no GPU: there are {there}; start fewer, or take --device cpu"
            )
        torch.cuda.set_device(number)
    if world == 1:
        yield Processes()
        return
    # The others wait here while the first prepares the data.
    distributed.init_process_group(
        "nccl" if device.type == "cuda" else "gloo", timeout=timedelta(days=1)
    )
    try:
        yield Processes(distributed.get_rank(), world)
    finally:
        distributed.destroy_process_group()
