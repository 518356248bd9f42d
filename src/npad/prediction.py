"""What a step predicts: logits and what normalises them, so that log-probabilities need not be written out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from npad.kernels import fused
from npad.model import log_probs, sound_logits

CHUNK = 64  # symbols: the k best of all are in the k chunks with the best best


@dataclass(frozen=True)
class Prediction:
    """The distribution of each row's next symbol: log p(symbol) = logits − norm. NaN where a row is none."""

    logits: Tensor  # [..., V], in the model's own precision
    norm: Tensor  # [...], in float32 or better
    first: Tensor | None = None  # [...], the most probable symbol where it is known already, of equals the first

    @classmethod
    def of(cls, model: Any, logits: object, rows: int, vocabulary: int | None = None) -> Prediction:
        """Of what a model's `step` returned."""
        checked = sound_logits(model, logits, rows, vocabulary)
        if fused(checked) and not getattr(model, "normalised", False):
            from npad.kernels.normaliser import normaliser

            return cls(checked, *normaliser(checked))
        scored = log_probs(model, checked, rows)
        # One NaN makes the whole row's log-softmax NaN.
        return cls(scored, torch.zeros_like(scored[:, 0]).masked_fill(scored[:, 0].isnan(), torch.nan))

    def view(self, *shape: int) -> Prediction:
        """The rows in another shape."""
        first = None if self.first is None else self.first.view(shape)
        return Prediction(self.logits.view(*shape, -1), self.norm.view(shape), first)

    def expand(self, groups: int, width: int) -> Prediction:
        """[groups, 1] as [groups, width]."""
        first = None if self.first is None else self.first.expand(groups, width)
        return Prediction(self.logits.expand(groups, width, -1), self.norm.expand(groups, width), first)

    def at(self, symbols: Tensor) -> Tensor:
        """log p of symbols [..., k]."""
        return self.logits.gather(-1, symbols).to(self.norm.dtype) - self.norm[..., None]

    def best(self) -> Tensor:
        """[...], the most probable symbol, of equals the first."""
        return self.logits.argmax(-1) if self.first is None else self.first

    def top(self, k: int) -> tuple[Tensor, Tensor]:
        """log p of the k most probable symbols, the best first, and the symbols: [..., k] each."""
        missing = -self.logits.shape[-1] % CHUNK
        padded = F.pad(self.logits, (0, missing), value=-torch.inf) if missing else self.logits
        chunks = padded.view(*padded.shape[:-1], -1, CHUNK)
        if chunks.shape[-2] <= k:
            values, symbols = self.logits.topk(k, -1)
        else:
            where = chunks.amax(-1).topk(k, -1).indices.sort(-1).values
            some = chunks.gather(-2, where[..., None].expand(*where.shape, CHUNK)).flatten(-2)
            values, place = some.topk(k, -1)
            symbols = where.gather(-1, place // CHUNK) * CHUNK + place % CHUNK
        return values.to(self.norm.dtype) - self.norm[..., None], symbols

    def dense(self) -> Tensor:
        """log p of every symbol, [..., V]."""
        return self.logits.to(self.norm.dtype) - self.norm[..., None]
