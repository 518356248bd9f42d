"""What a search found: as tensors inside, as plain objects for people."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from itertools import repeat

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from npad.engine.pytree import mapped
from npad.search.rows import descending, take
from npad.search.runs import place_in_run, side_by_side, starts


@dataclass(frozen=True)
class Hypothesis:
    """One output for one sentence.

    `log_prob` is the clean model's, the end symbol included if `finished`; a hypothesis cut at `max_length` is not.
    `chain` is the first chain that found it (0: the clean one, or no NPAD), `noisy_log_prob` what that chain thought
    of it, and `proven` the certificate of `Exact`.
    """

    tokens: tuple[int, ...]  # without begin and end symbols
    log_prob: float
    finished: bool
    chain: int = 0
    noisy_log_prob: float | None = None
    proven: bool | None = None


@dataclass(frozen=True)
class Found:
    """The hypotheses of many problems at once: n places per problem, best first, empty places last."""

    tokens: Tensor  # [groups, n, T], without the end symbol, padded
    lengths: Tensor  # [groups, n], symbols in it; −1 marks an empty place
    finished: Tensor  # [groups, n]
    log_prob: Tensor  # [groups, n]
    chain: Tensor | None = None  # [groups, n]
    noisy_log_prob: Tensor | None = None  # [groups, n]
    proven: Tensor | None = None  # [groups, n]
    count: Tensor | None = None  # [groups, n], how many times it was found before duplicates were merged
    clean: Tensor | None = None  # [groups, n], log_prob by the clean model, from a search that kept it along
    coverage: Tensor | None = None  # [groups, n, source length], attention summed over its symbols

    @property
    def exists(self) -> Tensor:
        return self.lengths >= 0

    def at(self, index: Tensor) -> Found:
        """Per group, the hypotheses at index [groups, k]."""
        return mapped(self, lambda x: take(x, index))

    def groups(self, index: Tensor) -> Found:
        """The given groups."""
        return mapped(self, lambda x: x[index])

    def cpu(self) -> Found:
        return mapped(self, lambda x: x.cpu())

    def regroup(self, times: int) -> Found:
        """Merge each `times` consecutive groups into one."""
        return mapped(self, lambda x: x.reshape(len(x) // times, times * x.shape[1], *x.shape[2:]))

    def best_first(self, score: Tensor | None = None) -> Found:
        """Order by (exists, finished, score), ties as they were; the score is log_prob unless given."""
        if self.lengths.shape[1] == 1:
            return self
        score = self.log_prob if score is None else score
        order = descending(score)
        rank = self.exists.long() + (self.exists & self.finished).long()
        return self.at(order.gather(1, descending(rank.gather(1, order))))

    def distinct(self) -> tuple[Found, Tensor]:
        """Merge equal hypotheses of a group into their first, with its count; and where each one went. On a CPU.

        The second value is [groups, n]: the place of each old hypothesis among the distinct ones (0 if empty).
        """
        groups, n = self.lengths.shape
        lengths, finished = self.lengths.numpy().ravel(), self.finished.numpy().ravel()
        owner = np.repeat(np.arange(groups), n)
        content = np.column_stack([owner, lengths, finished, self.tokens.numpy().reshape(groups * n, -1)])
        where = np.flatnonzero(lengths >= 0)
        where = where[side_by_side(content[where])]  # with the first of its kind first
        opens = starts(content[where])
        heads = np.flatnonzero(opens)

        order = where[heads].argsort()  # by first occurrence, so groups stay in order
        first, count = where[heads][order], np.diff(heads, append=len(where))[order]
        place = place_in_run(first // n)
        width = int(place.max()) + 1 if len(place) else 1
        source, counts = np.zeros((2, groups, width), dtype=np.int64)
        source[first // n, place], counts[first // n, place] = first % n, count
        went = np.zeros(groups * n, dtype=np.int64)
        went[where] = place[order.argsort()][np.cumsum(opens) - 1]
        merged, found = self.at(torch.from_numpy(source)), torch.from_numpy(counts)
        lengths_now = merged.lengths.masked_fill(found == 0, -1)
        return replace(merged, lengths=lengths_now, count=found), torch.from_numpy(went).view(groups, n)

    def hypotheses(self) -> list[list[Hypothesis]]:
        """As plain objects, one list per group."""
        given = [x.tolist() for x in (self.lengths, self.tokens, self.log_prob, self.finished)]
        columns = ((self.chain, 0), (self.noisy_log_prob, None), (self.proven, None))
        also = [repeat(repeat(other)) if x is None else x.tolist() for x, other in columns]
        return [
            [Hypothesis(tuple(tokens[:n]), *rest) for n, tokens, *rest in zip(*group, strict=False) if n >= 0]
            for group in zip(*given, *also, strict=False)
        ]


def join(pieces: list[Found], pad: int, dim: int = 1) -> Found:
    """The hypotheses of several searches: of the same groups side by side (1), or of different groups (0)."""
    longest = max(piece.tokens.shape[-1] for piece in pieces)
    pieces = [replace(p, tokens=F.pad(p.tokens, (0, longest - p.tokens.shape[-1]), value=pad)) for p in pieces]
    given = [field.name for field in fields(Found) if all(getattr(p, field.name) is not None for p in pieces)]
    return Found(**{name: torch.cat([getattr(piece, name) for piece in pieces], dim) for name in given})


def gather_groups(pieces: list[tuple[Tensor, Found]], pad: int) -> Found:
    """Put pieces found at different times, each with the groups it belongs to, back in the order of the groups."""
    order = torch.cat([owner for owner, _ in pieces]).argsort()
    return join([piece for _, piece in pieces], pad, dim=0).groups(order)
