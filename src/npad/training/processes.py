"""Data-parallel training with torchrun: each process takes a share of every batch."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
from torch import Tensor, distributed, nn

from npad.errors import InvalidInput
from npad.training.sources import Index

TIMEOUT = timedelta(days=1)  # of a collective; the others wait while the first prepares the data


@dataclass(frozen=True)
class Processes:
    """The rank of this process among `world` processes."""

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
    """Join the processes that torchrun started, or yield this process alone.

    Raises:
        InvalidInput: there are fewer GPUs than processes.
    """
    world = int(os.environ.get("WORLD_SIZE", 1))
    if device.type == "cuda":
        _select_gpu(int(os.environ["LOCAL_RANK"]) if world > 1 else device.index or 0)
    if world == 1:
        yield Processes()
        return
    backend = "nccl" if device.type == "cuda" else "gloo"
    distributed.init_process_group(backend, timeout=TIMEOUT)
    try:
        yield Processes(distributed.get_rank(), world)
    finally:
        distributed.destroy_process_group()


def _select_gpu(number: int) -> None:
    gpus = torch.cuda.device_count()
    if number >= gpus:
        way_out = "start fewer, or take --device cpu"
        raise InvalidInput(f"process {number + 1} has no GPU: there are {gpus}; {way_out}")
    torch.cuda.set_device(number)
