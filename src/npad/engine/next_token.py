"""What a step predicts: logits and what normalises them, so that log-probabilities need not be written out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from npad.engine.pytree import mapped
from npad.kernels import fused
from npad.model import log_probs, sound_logits

CHUNK = 64  # symbols: the k best of all are in the k chunks with the best best
FEW = 16  # best ones, which a kernel finds faster


@dataclass(frozen=True)
class Prediction:
    """The distribution of each row's next symbol: log p(symbol) = logits − norm. NaN where a row is none."""

    logits: Tensor  # [..., V], in the model's own precision
    norm: Tensor  # [...], in float32 or better
    first: Tensor | None = None  # [...], the most probable symbol where it is known already, of equals the first
    peaks: Tensor | None = None  # [..., ⌈V / CHUNK⌉], the largest logits of chunks of symbols where they are known

    @classmethod
    def of(cls, model: Any, logits: object, rows: int, vocabulary: int | None = None) -> Prediction:
        """Of what a model's `step` returned."""
        checked = sound_logits(model, logits, rows, vocabulary)
        if fused(checked) and not getattr(model, "normalised", False):
            from npad.kernels.normaliser import normaliser

            checked = checked if checked.stride(-1) == 1 else checked.contiguous()  # as every kernel wants them
            return cls(checked, *normaliser(checked, CHUNK))
        scored = log_probs(model, checked, rows)
        # One NaN makes the whole row's log-softmax NaN, unless there was none to take.
        broken = scored.isnan().any(-1) if getattr(model, "normalised", False) else scored[:, 0].isnan()
        return cls(scored, torch.zeros_like(scored[:, 0]).masked_fill(broken, torch.nan))

    def map(self, change: Callable[[Tensor], Tensor]) -> Prediction:
        """Each part, whose first dimensions are the rows, changed alike."""
        return mapped(self, change)

    def view(self, *shape: int) -> Prediction:
        """The rows [n] in another shape."""
        return self.map(lambda x: x.view(*shape, *x.shape[1:]))

    def expand(self, groups: int, width: int) -> Prediction:
        """[groups, 1] as [groups, width]."""
        return self.map(lambda x: x.expand(groups, width, *x.shape[2:]))

    def at(self, symbols: Tensor) -> Tensor:
        """log p of symbols [..., k]."""
        return self.logits.gather(-1, symbols).to(self.norm.dtype) - self.norm[..., None]

    def best(self) -> Tensor:
        """[...], the most probable symbol, of equals the first."""
        if self.first is not None:
            return self.first
        chunk = self._peaks().argmax(-1, keepdim=True)  # a maximum is found faster than where it is
        return self._within(chunk).argmax(-1) + CHUNK * chunk.squeeze(-1)

    def top(self, k: int) -> tuple[Tensor, Tensor]:
        """log p of the k most probable symbols, the best first, and the symbols: [..., k] each."""
        symbols = self.logits.shape[-1]
        if symbols <= k * CHUNK:
            values, chosen = self.logits.topk(k, -1)
        elif self.peaks is not None and k <= FEW:
            from npad.kernels.top import top

            values, chosen = top(self.logits, self.peaks, k, CHUNK)
        else:
            chunks = self._peaks().topk(k, -1).indices.sort(-1).values
            values, place = self._within(chunks).topk(k, -1)
            chosen = chunks.gather(-1, place // CHUNK) * CHUNK + place % CHUNK
        return values.to(self.norm.dtype) - self.norm[..., None], chosen

    def _peaks(self) -> Tensor:
        if self.peaks is not None:
            return self.peaks
        even = self.logits.shape[-1] // CHUNK * CHUNK
        peaks = self.logits[..., :even].unflatten(-1, (-1, CHUNK)).amax(-1)  # type: ignore[no-untyped-call]
        rest = self.logits[..., even:]
        return torch.cat([peaks, rest.amax(-1, keepdim=True)], -1) if rest.shape[-1] else peaks

    def _within(self, chunks: Tensor) -> Tensor:
        """The logits of some chunks [..., k], −inf past the last symbol: [..., k · CHUNK]."""
        last = self.logits.shape[-1] - 1
        some = (chunks[..., None] * CHUNK + torch.arange(CHUNK, device=chunks.device)).flatten(-2)
        return self.logits.gather(-1, some.clamp(max=last)).masked_fill(some > last, -torch.inf)

    def dense(self) -> Tensor:
        """log p of every symbol, [..., V]."""
        return self.logits.to(self.norm.dtype) - self.norm[..., None]
