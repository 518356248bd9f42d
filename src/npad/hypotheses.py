"""What a search found: as tensors inside, as plain objects for people."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from npad.rows import descending, place_in_run, take


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
        return self._map(lambda x: take(x, index))

    def groups(self, index: Tensor) -> Found:
        """The given groups."""
        return self._map(lambda x: x[index])

    def to(self, device: torch.device) -> Found:
        return self._map(lambda x: x.to(device))

    def regroup(self, times: int) -> Found:
        """Merge each `times` consecutive groups into one."""
        return self._map(lambda x: x.reshape(len(x) // times, times * x.shape[1], *x.shape[2:]))

    def best_first(self, score: Tensor | None = None) -> Found:
        """Order by (exists, finished, score), ties as they were; the score is log_prob unless given."""
        if self.lengths.shape[1] == 1:
            return self
        score = self.log_prob if score is None else score
        order = descending(score)
        rank = self.exists.long() + (self.exists & self.finished).long()
        return self.at(order.gather(1, descending(rank.gather(1, order))))

    def distinct(self) -> tuple[Found, Tensor]:
        """Merge equal hypotheses of a group into their first, with its count; and where each one went.

        The second value is [groups, n]: the place of each old hypothesis among the distinct ones (0 if empty).
        """
        groups, n = self.lengths.shape
        device = self.lengths.device
        owner = torch.arange(groups, device=device)[:, None].expand(groups, n)
        content = torch.cat([torch.stack([owner, self.lengths, self.finished.long()], -1), self.tokens], -1)
        where = self.exists.flatten().nonzero().squeeze(1)
        _, kind, count = torch.unique(content.flatten(0, 1)[where], dim=0, return_inverse=True, return_counts=True)

        first = torch.full_like(count, groups * n).scatter_reduce(0, kind, where, "amin")
        first, order = first.sort()  # by first occurrence, so groups stay in order
        place = place_in_run(first // n)
        width = int(place.max()) + 1 if len(place) else 1
        target = (first // n) * width + place

        source = torch.zeros(groups * width, dtype=torch.long, device=device).scatter(0, target, first % n)
        merged = self.at(source.view(groups, width))
        filled = torch.zeros(groups * width, dtype=torch.bool, device=device).scatter(0, target, True)
        counts = torch.zeros(groups * width, dtype=count.dtype, device=device).scatter(0, target, count[order])
        lengths = merged.lengths.masked_fill(~filled.view(groups, width), -1)
        merged = replace(merged, lengths=lengths, count=counts.view(groups, width))
        place_of_kind = torch.empty_like(place).scatter(0, order, place)
        went = torch.zeros(groups * n, dtype=torch.long, device=device).scatter(0, where, place_of_kind[kind])
        return merged, went.view(groups, n)

    def hypotheses(self) -> list[list[Hypothesis]]:
        """As plain objects, one list per group."""
        columns = (self.chain, self.noisy_log_prob, self.proven)
        chain, noisy, proven = (None if column is None else column.tolist() for column in columns)
        tokens, log_prob, finished = self.tokens.tolist(), self.log_prob.tolist(), self.finished.tolist()
        return [
            [
                Hypothesis(
                    tokens=tuple(tokens[g][i][:length]),
                    log_prob=log_prob[g][i],
                    finished=finished[g][i],
                    chain=0 if chain is None else chain[g][i],
                    noisy_log_prob=None if noisy is None else noisy[g][i],
                    proven=None if proven is None else proven[g][i],
                )
                for i, length in enumerate(row)
                if length >= 0
            ]
            for g, row in enumerate(self.lengths.tolist())
        ]

    def _map(self, change: Callable[[Tensor], Tensor]) -> Found:
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        return replace(self, **{name: change(x) for name, x in given.items() if x is not None})


def join(pieces: list[Found], pad: int, dim: int = 1) -> Found:
    """The hypotheses of several searches: of the same groups side by side (1), or of different groups (0)."""
    longest = max(piece.tokens.shape[-1] for piece in pieces)
    pieces = [replace(p, tokens=F.pad(p.tokens, (0, longest - p.tokens.shape[-1]), value=pad)) for p in pieces]
    given = [field.name for field in fields(Found) if all(getattr(p, field.name) is not None for p in pieces)]
    return Found(**{name: torch.cat([getattr(piece, name) for piece in pieces], dim) for name in given})


def gather_groups(pieces: list[tuple[Tensor, Found]], pad: int) -> Found:
    """Put pieces found at different times, each with the groups it belongs to, back in the order of the groups."""
    if len(pieces) == 1:
        return pieces[0][1]
    order = torch.cat([owner for owner, _ in pieces]).argsort()
    return join([piece for _, piece in pieces], pad, dim=0).groups(order)
