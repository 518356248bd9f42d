"""Token batches of pairs of similar length, in an order of (seed, epoch) alone, and their loss."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from npad.model import Special, untouched
from npad.models.cgru.model import AttentionModel
from npad.training.sources import Index, Side, Source, round_up
from npad.training.store import PairCorpus

WINDOW = 100  # batches' worth of pairs sorted by length together: more pads less, fewer mix more


@dataclass(frozen=True)
class Batch:
    """Pairs as padded tensors; inputs start with the begin token, outputs end with the end."""

    ids: Tensor  # [sentences], positions in the corpus
    source: Tensor  # [sentences, …], what `AttentionModel.padded` returns: tokens, pixels, frames
    lengths: Tensor | None  # [sentences], of the sources, on the CPU; None: nothing is padded
    inputs: Tensor  # [sentences, length], what the decoder reads
    positions: Tensor  # [tokens], indices into inputs.flatten() that predict a token
    outputs: Tensor  # [tokens], the token to predict at each position

    def to(self, device: torch.device) -> Batch:
        """Copy to `device` asynchronously, except for the lengths."""
        names = ("ids", "source", "inputs", "positions", "outputs")
        tensors = {name: getattr(self, name).to(device, non_blocking=True) for name in names}
        return replace(self, **tensors)


@dataclass(frozen=True)
class Batcher:
    """Cuts a corpus into batches of at most `max_tokens` per side, padding included.

    Lengths and numbers of sentences are rounded up to multiples of `grid`, so that few shapes
    occur: on a GPU every shape is captured as a graph.
    """

    corpus: PairCorpus
    special: Special
    max_tokens: int
    grid: tuple[int, int] = (1, 1)  # sentences, length

    def epoch(self, seed: int, number: int) -> list[Index]:
        """Return the pairs of each batch of an epoch, shuffled."""
        random = np.random.default_rng((seed, number))
        order = random.permutation(len(self.corpus))
        pairs_per_batch = max(1, int(self.max_tokens / self.sizes(order[:10_000]).mean()))
        window = WINDOW * pairs_per_batch
        batches = []
        for start in range(0, len(order), window):
            batches += list(self._cut(order[start : start + window]))
        return [batches[i] for i in random.permutation(len(batches))]

    def in_order(self) -> list[Index]:
        """Return batches of all pairs, shortest first, for validation."""
        return list(self._cut(np.arange(len(self.corpus))))

    def sizes(self, pairs: Index) -> Index:
        """Return the positions of each pair's longer side, rounded up."""
        source, target = (side.positions[pairs] for side in self.sides)
        return round_up(np.maximum(source, target).astype(np.int64), self.grid[1])

    def _cut(self, pairs: Index) -> Iterator[Index]:
        """Sort pairs by size and split them into runs with (pairs × largest) within the limit."""
        source, target = (side.positions[pairs] for side in self.sides)
        pairs = pairs[np.lexsort((source, target, self.sizes(pairs)))]
        sizes, start = self.sizes(pairs), 0
        while start < len(pairs):
            ahead = sizes[start : start + self.max_tokens]
            tokens = ahead * np.arange(1, len(ahead) + 1)
            fits = max(1, int(np.searchsorted(tokens, self.max_tokens, side="right")))
            yield pairs[start : start + fits]
            start += fits

    def batch(self, pairs: Index) -> Batch:
        """Build the batch of pairs; sentences added to fill the grid predict nothing."""
        bos, eos, _ = self.special
        padding = int(round_up(len(pairs), self.grid[0])) - len(pairs)
        index = np.concatenate([pairs, np.repeat(pairs[:1], padding)])
        source, lengths = self.corpus.source.read(index, self.grid[1], eos)
        target, ends = self.corpus.target.read(index, self.grid[1], eos)
        ends[len(pairs) :] = 0
        inputs = torch.cat([torch.full((len(index), 1), bos), target[:, :-1]], 1)
        predicts = torch.arange(target.shape[1]) < ends[:, None]
        positions = predicts.flatten().nonzero().squeeze(1)
        outputs = target.flatten()[positions]
        return Batch(torch.from_numpy(index), source, lengths, inputs, positions, outputs)

    @property
    def sides(self) -> tuple[Source, Side]:
        """The source and the target."""
        return self.corpus.source, self.corpus.target


@dataclass(frozen=True)
class Buckets(Batcher):
    """Cuts a corpus into batches of few shapes, one per length: each is captured as a graph.

    A pair's length is that of its longer side, rounded up; both sides are padded to it, and a last
    batch that is not full with sentences that predict nothing.
    """

    grid: tuple[int, int] = (16, 4)

    def epoch(self, seed: int, number: int) -> list[Index]:
        random = np.random.default_rng((seed, number))
        order = random.permutation(len(self.corpus))
        sizes = self.sizes(order)
        batches = []
        for size in np.unique(sizes).tolist():
            pairs, rows = order[sizes == size], self._rows(size)
            batches += [pairs[start : start + rows] for start in range(0, len(pairs), rows)]
        return [batches[i] for i in random.permutation(len(batches))]

    def batch(self, pairs: Index) -> Batch:
        """Build the batch of pairs, of the shape of their length."""
        size = int(self.sizes(pairs[:1])[0])
        shape = (self._rows(size), size)
        return Batcher(self.corpus, self.special, self.max_tokens, shape).batch(pairs)

    def _rows(self, size: int) -> int:
        """Return the sentences of a batch of pairs of a size."""
        step = self.grid[0]
        return max(step, self.max_tokens // size // step * step)


def nll(
    model: AttentionModel,
    batch: Batch,
    perturb: Callable[[int], Any] = lambda step: untouched,
    features: Callable[..., Tensor] | None = None,
) -> Tensor:
    """Return −log p of the batch's targets, end tokens included, summed over its sentences.

    Args:
        model: the model to score with.
        batch: the pairs.
        perturb: the noise of a step, counted from 1.
        features: a faster equivalent of `model.features`, such as a captured one.
    """
    state = model.begin(batch.source, batch.lengths)
    hidden = (features or model.features)(state, batch.inputs, perturb)
    logits = model.logits(hidden.flatten(0, 1)[batch.positions])
    precise = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return F.cross_entropy(precise, batch.outputs, reduction="sum")
