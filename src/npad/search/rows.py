"""Which row is what: the index arithmetic of sentences, chains and beams."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor


@dataclass(frozen=True)
class Problems:
    """The independent problems a search works on: one per sentence, or one per sentence and chain."""

    ids: Tensor  # [groups], the sentence's key to its randomness
    chains: Tensor  # [groups], 0 outside NPAD and for its clean chain
    max_length: int  # generated symbols, the end symbol included
    per_sentence: int = 1  # consecutive problems of one sentence; finished sentences are dropped whole
    max_rows: int | None = None  # that NPAD's chains may take together; None: all at a time

    def __len__(self) -> int:
        return self.ids.shape[0]

    def expand(self, chains: Tensor) -> Problems:
        """One problem per sentence and chain, sentence-major."""
        times = chains.shape[0]
        ids = self.ids.repeat_interleave(times)
        return Problems(ids, chains.repeat(len(self)), self.max_length, self.per_sentence * times, self.max_rows)


class Layout(NamedTuple):
    """How the rows of a state are laid out: sentence-major, the same number for every sentence.

    For models that treat the rows of a sentence together, as batched attention does. What `select` means for it can be
    told from the number of rows alone: of several sentences, fewer rows than before mean that whole sentences are
    dropped and the others keep theirs; as many or more mean the same sentences. One sentence may have any rows.
    """

    sentences: int
    each: int

    def after(self, rows: Tensor) -> tuple[Layout, Tensor | None]:
        """The layout once `rows` are selected, and the sentences that are left (None: all of them)."""
        count = rows.shape[0]
        if self.sentences == 1:
            return Layout(1, count), None
        if count >= self.sentences * self.each:
            return Layout(self.sentences, count // self.sentences), None
        return Layout(count // self.each, self.each), rows[:: self.each] // self.each


def repeat(groups: int, times: int, device: torch.device) -> Tensor:
    """Rows that repeat each of `groups` rows `times` times, in place: 0 0 0 1 1 1 …"""
    return torch.arange(groups, device=device).repeat_interleave(times)


def rows_of(groups: Tensor, width: int) -> Tensor:
    """The rows of some groups, each `width` rows wide: [chosen] -> [chosen · width]."""
    return (groups[:, None] * width + torch.arange(width, device=groups.device)).flatten()


def rows_from(parents: Tensor, width: int) -> Tensor:
    """The rows of parents [groups, k] that are numbered within their group of `width` rows: -> [groups · k]."""
    first = torch.arange(parents.shape[0], device=parents.device)[:, None] * width
    return (first + parents).flatten()


def place_in_run(group: Tensor) -> Tensor:
    """Each row's place among the neighbours of the same group: 7 7 7 4 4 -> 0 1 2 0 1."""
    place = torch.arange(group.shape[0], device=group.device)
    opens = torch.ones_like(group, dtype=torch.bool)
    opens[1:] = group[1:] != group[:-1]
    return place - torch.where(opens, place, 0).cummax(0).values


def descending(x: Tensor) -> Tensor:
    """The order of each row of x [groups, n] from the largest down; equals stay as they are."""
    return x.argsort(dim=1, descending=True, stable=True)


def take(x: Tensor, index: Tensor) -> Tensor:
    """Per group, the entries of x [groups, n, …] at index [groups, k]."""
    if x.dim() == 2:
        return x.gather(1, index)
    shape = index.shape + (1,) * (x.dim() - 2)
    return x.gather(1, index.view(shape).expand(index.shape + x.shape[2:]))
