"""Hypotheses: as tensors while searching, as plain objects in results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from itertools import repeat
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from npad.engine.pytree import tree_map
from npad.rows import descending, rank_in_run, take


@dataclass(frozen=True)
class Hypothesis:
    """An output for a sentence.

    Attributes:
        tokens: without begin and end tokens.
        log_prob: under the clean model, the end token included if finished.
        finished: whether it ended with the end token; False if cut at `max_length`.
        chain: the first chain that produced it; 0 for the clean chain and outside NPAD.
        noisy_log_prob: its log-probability in that chain, noise included; None outside NPAD.
        proven: the certificate of `Exact`; None elsewhere.
        count: how many of NPAD's candidates were equal to it; 1 elsewhere.
        met: whether it has all phrases that a constraint requires.
    """

    tokens: tuple[int, ...]
    log_prob: float
    finished: bool
    chain: int = 0
    noisy_log_prob: float | None = None
    proven: bool | None = None
    count: int = 1
    met: bool = True


class Distinct(NamedTuple):
    """Hypotheses without duplicates, and the place of each original among them."""

    hypotheses: Hypotheses
    places: Tensor  # [groups, n], the distinct hypothesis equal to each; 0 if empty


@dataclass(frozen=True)
class Hypotheses:
    """The hypotheses of many problems: n places per problem, best first, empty places last."""

    tokens: Tensor  # [groups, n, T], without the end token, padded
    lengths: Tensor  # [groups, n], tokens in it; −1 marks an empty place
    finished: Tensor  # [groups, n]
    log_prob: Tensor  # [groups, n]
    chain: Tensor | None = None  # [groups, n]
    noisy_log_prob: Tensor | None = None  # [groups, n]
    proven: Tensor | None = None  # [groups, n]
    count: Tensor | None = None  # [groups, n], duplicates merged into it, itself included
    clean_log_prob: Tensor | None = None  # [groups, n], as the search recorded it, or NaN
    coverage: Tensor | None = None  # [groups, n, source length], attention summed over its tokens
    met: Tensor | None = None  # [groups, n], whether it has all phrases that are required

    @property
    def exists(self) -> Tensor:
        return self.lengths >= 0

    def at(self, index: Tensor) -> Hypotheses:
        """Return, per group, the hypotheses at index [groups, k]."""
        return tree_map(lambda x: take(x, index), self)

    def groups(self, index: Tensor) -> Hypotheses:
        """Return the given groups."""
        return tree_map(lambda x: x[index], self)

    def cpu(self) -> Hypotheses:
        return tree_map(lambda x: x.cpu(), self)

    def regroup(self, size: int) -> Hypotheses:
        """Merge each `size` consecutive groups into one."""
        return tree_map(lambda x: x.reshape(len(x) // size, size * x.shape[1], *x.shape[2:]), self)

    def best_first(self, score: Tensor | None = None, cut_competes: bool = False) -> Hypotheses:
        """Sort stably by (exists, met, finished, score), descending; `score` defaults to log_prob.

        If `cut_competes`, sort by (exists, met, score): hypotheses cut at max_length rank among the
        finished ones.
        """
        if self.lengths.shape[1] == 1:
            return self
        score = self.log_prob if score is None else score
        order = descending(score)
        rank = self.exists.long()
        if not cut_competes:
            rank = rank + (self.exists & self.finished).long()
        if self.met is not None:
            rank = rank + 2 * (self.exists & self.met).long()
        return self.at(order.gather(1, descending(rank.gather(1, order))))

    def distinct(self) -> Distinct:
        """Merge duplicates within each group into their first occurrence, and count them.

        The hypotheses must be on the CPU.
        """
        groups, n = self.lengths.shape
        owner = np.broadcast_to(np.arange(groups)[:, None], (groups, n))
        described = (owner, self.lengths.numpy(), self.finished.numpy())
        content = np.concatenate([*(x[..., None] for x in described), self.tokens.numpy()], -1)
        row = np.dtype((np.void, content.itemsize * content.shape[-1]))
        rows = np.ascontiguousarray(content).view(row).ravel().tolist()
        firsts: dict[object, int] = {}  # a dictionary takes half the time of sorting the rows
        first = np.array([firsts.setdefault(key, i) for i, key in enumerate(rows)], dtype=np.int64)

        existing = self.lengths.numpy().ravel() >= 0
        heads = np.flatnonzero((first == np.arange(groups * n)) & existing)
        place = rank_in_run(heads // n)
        width = int(place.max()) + 1 if len(place) else 1
        source, counts = np.zeros((2, groups, width), dtype=np.int64)
        source[heads // n, place] = heads % n
        counts[heads // n, place] = np.bincount(first[existing], minlength=groups * n)[heads]
        index = np.zeros(groups * n, dtype=np.int64)
        index[heads] = place
        merged, count = self.at(torch.from_numpy(source)), torch.from_numpy(counts)
        merged_lengths = merged.lengths.masked_fill(count == 0, -1)
        distinct = replace(merged, lengths=merged_lengths, count=count)
        places = torch.from_numpy(np.where(existing, index[first], 0)).view(groups, n)
        return Distinct(distinct, places)

    @classmethod
    def from_list(cls, hypotheses: Sequence[Hypothesis]) -> Hypotheses:
        """Return NPAD's candidates for one sentence as tensors, [1, n]: the inverse of `to_lists`.

        Log-probabilities are float32 if that loses nothing, so that selectors compute as they do in
        the search.
        """
        width = max((len(hypothesis.tokens) for hypothesis in hypotheses), default=0)
        tokens = torch.zeros(1, len(hypotheses), width, dtype=torch.int64)
        for place, hypothesis in enumerate(hypotheses):
            tokens[0, place, : len(hypothesis.tokens)] = torch.tensor(hypothesis.tokens)
        exact = torch.tensor([[h.log_prob for h in hypotheses]], dtype=torch.float64)
        noisy = torch.tensor([[h.noisy_log_prob or 0.0 for h in hypotheses]], dtype=torch.float64)
        return cls(
            tokens,
            lengths=torch.tensor([[len(h.tokens) for h in hypotheses]], dtype=torch.long),
            finished=torch.tensor([[h.finished for h in hypotheses]], dtype=torch.bool),
            log_prob=exact.float() if torch.equal(exact.float().double(), exact) else exact,
            chain=torch.tensor([[h.chain for h in hypotheses]], dtype=torch.long),
            noisy_log_prob=noisy,
            count=torch.tensor([[h.count for h in hypotheses]], dtype=torch.long),
            met=torch.tensor([[h.met for h in hypotheses]], dtype=torch.bool),
        )

    def to_lists(self) -> list[list[Hypothesis]]:
        """Return plain objects, one list per group."""
        required = [x.tolist() for x in (self.lengths, self.tokens, self.log_prob, self.finished)]
        defaults = (
            (self.chain, 0),
            (self.noisy_log_prob, None),
            (self.proven, None),
            (self.count, 1),
            (self.met, True),
        )
        optional = [
            repeat(repeat(default)) if column is None else column.tolist()
            for column, default in defaults
        ]
        return [
            [
                Hypothesis(tuple(tokens[:length]), *values)
                for length, tokens, *values in zip(*group, strict=False)
                if length >= 0
            ]
            for group in zip(*required, *optional, strict=False)
        ]


def join(pieces: list[Hypotheses], pad: int, dim: int = 1) -> Hypotheses:
    """Concatenate hypotheses of the same groups (dim=1) or of different groups (dim=0).

    Fields that any piece lacks are dropped; tokens are padded to the longest.
    """
    if len(pieces) == 1:
        return pieces[0]
    longest = max(piece.tokens.shape[-1] for piece in pieces)
    pieces = [
        replace(piece, tokens=F.pad(piece.tokens, (0, longest - piece.tokens.shape[-1]), value=pad))
        for piece in pieces
    ]
    present = [
        field.name
        for field in fields(Hypotheses)
        if all(getattr(piece, field.name) is not None for piece in pieces)
    ]
    return Hypotheses(
        **{name: torch.cat([getattr(piece, name) for piece in pieces], dim) for name in present}
    )


def join_groups(pieces: list[tuple[Tensor, Hypotheses]], pad: int) -> Hypotheses:
    """Concatenate pieces with their group indices [n], and sort them by group."""
    order = torch.cat([groups for groups, _ in pieces]).argsort()
    return join([piece for _, piece in pieces], pad, dim=0).groups(order)
