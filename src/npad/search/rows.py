"""Row indices of sentences, chains and beams."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Problems:
    """The independent problems of a search: one per sentence, or one per sentence and chain."""

    ids: Tensor  # [groups], the sentence id, part of the key of all randomness
    chains: Tensor  # [groups], 0 outside NPAD and for its clean chain
    max_length: int  # generated tokens, the end token included
    per_sentence: int = 1  # problems per sentence; they are consecutive and dropped together
    max_rows: int | None = None  # rows that NPAD's chains may take at a time; None: no limit

    def __len__(self) -> int:
        return self.ids.shape[0]

    def expand(self, chains: Tensor) -> Problems:
        """Return one problem per sentence and chain, sentence-major."""
        count = chains.shape[0]
        return Problems(
            ids=self.ids.repeat_interleave(count),
            chains=chains.repeat(len(self)),
            max_length=self.max_length,
            per_sentence=self.per_sentence * count,
            max_rows=self.max_rows,
        )


def repeat(groups: int, times: int, device: torch.device) -> Tensor:
    """Return an index that repeats each of `groups` rows `times` times: 0 0 0 1 1 1 …"""
    return torch.arange(groups, device=device).repeat_interleave(times)


def rows_of(groups: Tensor, width: int) -> Tensor:
    """Return the rows of the given groups, each `width` rows wide: [n] -> [n · width]."""
    return (groups[:, None] * width + torch.arange(width, device=groups.device)).flatten()


def rows_from(parents: Tensor, width: int) -> Tensor:
    """Return the rows of parents [groups, k], numbered within groups of `width`: [groups · k]."""
    first = torch.arange(parents.shape[0], device=parents.device)[:, None] * width
    return (first + parents).flatten()


def descending(x: Tensor) -> Tensor:
    """Return the stable descending argsort of each row of x [groups, n]."""
    return x.argsort(dim=1, descending=True, stable=True)


def take(x: Tensor, index: Tensor) -> Tensor:
    """Return, per group, the entries of x [groups, n, …] at index [groups, k]."""
    if x.dim() == 2:
        return x.gather(1, index)
    shape = index.shape + (1,) * (x.dim() - 2)
    return x.gather(1, index.view(shape).expand(index.shape + x.shape[2:]))
