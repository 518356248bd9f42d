"""Who came from whom: the symbols of a search and the way back through them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor


@dataclass(frozen=True)
class History:
    """Symbols and back-pointers, one row per step. Written in place at a step that is itself a tensor."""

    tokens: Tensor  # [T, groups, width]
    parents: Tensor | None  # [T, groups, width], each one's slot a step before; None: its own
    step: Tensor  # [1], how many are written

    @classmethod
    def empty(
        cls, groups: int, width: int, length: int, pad: int, device: torch.device, straight: bool = False
    ) -> History:
        tokens = torch.full((length, groups, width), pad, device=device)
        parents = None if straight else torch.zeros_like(tokens)
        return cls(tokens, parents, torch.zeros(1, dtype=torch.long, device=device))

    def append(self, tokens: Tensor, parents: Tensor | None = None) -> History:
        self.tokens.index_copy_(0, self.step, tokens[None])
        if self.parents is not None and parents is not None:
            self.parents.index_copy_(0, self.step, parents[None])
        return replace(self, step=self.step + 1)

    def groups(self, index: Tensor) -> History:
        parents = None if self.parents is None else self.parents[:, index]
        return replace(self, tokens=self.tokens[:, index], parents=parents)

    def straight(self, lengths: Tensor, pad: int) -> Tensor:
        """`trace` where every slot came from itself: the first `lengths` [groups, width] symbols of each."""
        steps = int(lengths.max().clamp(min=0)) if lengths.numel() else 0
        inside = torch.arange(steps, device=lengths.device) < lengths[..., None]
        return self.tokens[:steps].permute(1, 2, 0).masked_fill(~inside, pad)

    def trace(self, slots: Tensor, lengths: Tensor, pad: int) -> Tensor:
        """The first `lengths` [groups, n] symbols that lead to `slots` [groups, n]: -> [groups, n, T], padded."""
        steps = int(lengths.max().clamp(min=0)) if lengths.numel() else 0
        out = torch.full((*slots.shape, steps), pad, device=slots.device)
        assert self.parents is not None
        for t in reversed(range(steps)):
            inside = t < lengths
            out[:, :, t] = torch.where(inside, self.tokens[t].gather(1, slots), pad)
            slots = torch.where(inside, self.parents[t].gather(1, slots), slots)
        return out
