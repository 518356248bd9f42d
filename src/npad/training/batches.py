"""Batches: pairs of like length together, about as many symbols in each, ordered by nothing but (seed, epoch)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from npad.model import Special
from npad.training.store import Corpus, Side

WINDOW = 100  # batches' worth of pairs that are sorted by length together: enough to fill batches, few enough to mix
Index = NDArray[np.int64]


@dataclass(frozen=True)
class Batch:
    """Sentences as padded tensors. What is read starts with the begin symbol, what is predicted ends with the end's."""

    ids: Tensor  # [sentences], their places in the corpus
    source: Tensor  # [sentences, source length], the end symbol included
    lengths: Tensor  # [sentences], of the sources, on the CPU
    inputs: Tensor  # [sentences, length]
    places: Tensor  # [symbols], where among inputs.flatten() there is something to predict
    outputs: Tensor  # [symbols], what that is

    def to(self, device: torch.device) -> Batch:
        return replace(
            self,
            **{
                name: getattr(self, name).to(device, non_blocking=True)
                for name in ("ids", "source", "inputs", "places", "outputs")
            },
        )


@dataclass(frozen=True)
class Batcher:
    """Cuts a corpus into batches of at most `symbols` a side, padding included.

    Lengths and numbers of sentences are rounded up to `grid`, so that few shapes occur, where a shape has a price.
    """

    corpus: Corpus
    special: Special
    symbols: int
    grid: tuple[int, int] = (1, 1)  # sentences, length

    def epoch(self, seed: int, number: int) -> list[Index]:
        """The pairs of each batch of one epoch, shuffled."""
        random = np.random.default_rng((seed, number))
        order = random.permutation(len(self.corpus))
        typical = max(1, int(self.symbols / self.sizes(order[:10_000]).mean()))
        batches = []
        for start in range(0, len(order), WINDOW * typical):
            batches += list(self._cut(order[start : start + WINDOW * typical]))
        return [batches[i] for i in random.permutation(len(batches))]

    def in_order(self) -> list[Index]:
        """All pairs, shortest first: for validation."""
        return list(self._cut(np.arange(len(self.corpus))))

    def sizes(self, pairs: Index) -> Index:
        """Each pair's longer side, the end symbol included, rounded up."""
        longer = (
            np.maximum(self.corpus.source.lengths[pairs], self.corpus.target.lengths[pairs]) + 1
        )
        return rounded(longer.astype(np.int64), self.grid[1])

    def _cut(self, pairs: Index) -> Iterator[Index]:
        """Runs of pairs, sorted by size, with (pairs × largest) within bounds; at least one pair."""
        target, source = self.corpus.target.lengths[pairs], self.corpus.source.lengths[pairs]
        pairs = pairs[np.lexsort((source, target, self.sizes(pairs)))]
        sizes, start = self.sizes(pairs), 0
        while start < len(pairs):
            ahead = sizes[start : start + self.symbols]
            fits = int(
                np.searchsorted(ahead * np.arange(1, len(ahead) + 1), self.symbols, side="right")
            )
            yield pairs[start : start + max(1, fits)]
            start += max(1, fits)

    def batch(self, pairs: Index) -> Batch:
        """Some pairs as one batch; sentences that only fill it up predict nothing."""
        bos, eos, _ = self.special
        more = int(rounded(len(pairs), self.grid[0])) - len(pairs)
        index = np.concatenate([pairs, np.repeat(pairs[:1], more)])
        lengths, ends = (torch.from_numpy(side.lengths[index] + 1).long() for side in self.sides)
        source, target = (
            torch.from_numpy(side.padded(index, int(rounded(int(each.max()), self.grid[1])), eos))
            for side, each in zip(self.sides, (lengths, ends), strict=True)
        )
        ends[len(pairs) :] = 0
        inputs = torch.cat([torch.full((len(index), 1), bos), target[:, :-1]], 1)
        places = (torch.arange(target.shape[1]) < ends[:, None]).flatten().nonzero().squeeze(1)
        return Batch(
            torch.from_numpy(index), source, lengths, inputs, places, target.flatten()[places]
        )

    @property
    def sides(self) -> tuple[Side, Side]:
        return self.corpus.source, self.corpus.target


def rounded(size: Index | int, step: int) -> Index:
    """The next multiple of `step`."""
    return -(-np.asarray(size) // step) * step
