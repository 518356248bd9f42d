"""Row indices of sentences, chains and beams; runs of equal rows, in NumPy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

IntArray = NDArray[np.int64]


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


def with_copies(count: int, total: int, device: torch.device) -> Tensor:
    """Return an index of `total` that ends in copies of the first of `count`: 0 1 2 0 0 …"""
    index = torch.arange(total, device=device)
    return index.masked_fill(index >= count, 0)


def rows_from(parents: Tensor, width: int) -> Tensor:
    """Return the rows of parents [groups, k], numbered within groups of `width`: [groups · k]."""
    first = torch.arange(parents.shape[0], device=parents.device)[:, None] * width
    return (first + parents).flatten()


def descending(x: Tensor) -> Tensor:
    """Return the stable descending argsort of each row of x [groups, n]."""
    return x.argsort(dim=1, descending=True, stable=True)


def places_among_equals(x: Tensor) -> Tensor:
    """Return, for each entry of x [groups, n], the number of equal ones before it."""
    order = descending(x)
    grouped, places = x.gather(1, order), torch.arange(x.shape[1], device=x.device).expand_as(x)
    begins = F.pad(grouped[:, 1:] != grouped[:, :-1], (1, 0), value=True)
    starts = places.masked_fill(~begins, 0).cummax(1).values
    return torch.empty_like(order).scatter_(1, order, places - starts)


def take(x: Tensor, index: Tensor) -> Tensor:
    """Return, per group, the entries of x [groups, n, …] at index [groups, k]."""
    if x.dim() == 2:
        return x.gather(1, index)
    shape = index.shape + (1,) * (x.dim() - 2)
    return x.gather(1, index.view(shape).expand(index.shape + x.shape[2:]))


def argsort_rows(rows: NDArray[Any]) -> IntArray:
    """Return the stable lexicographic argsort of rows [n, k] of integers from 0."""
    if rows.size == 0:
        return np.arange(len(rows))
    big_endian = np.ascontiguousarray(
        rows, rows.dtype.newbyteorder(">")
    )  # byte order is then number order
    as_bytes = big_endian.view(np.dtype((np.void, big_endian.itemsize * rows.shape[1])))
    return np.argsort(as_bytes.ravel(), kind="stable")


def run_starts(rows: NDArray[Any]) -> NDArray[np.bool_]:
    """Return whether each row, [n] or [n, k], starts a run of equal rows."""
    starts = np.ones(len(rows), dtype=bool)
    differs = rows[1:] != rows[:-1]
    starts[1:] = differs if rows.ndim == 1 else differs.any(1)
    return starts


def rank_in_run(values: IntArray) -> IntArray:
    """Return each entry's rank in its run of equal neighbours: 7 7 7 4 4 -> 0 1 2 0 1."""
    position = np.arange(len(values))
    return position - np.maximum.accumulate(np.where(run_starts(values), position, 0))
