"""The distribution of the next token, as logits and their normaliser.

Log-probabilities of the whole vocabulary are computed only if asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from npad.engine.pytree import tree_map
from npad.kernels import fused
from npad.model import ensure_logits

CHUNK = 64  # tokens per chunk: the k best tokens are in the k chunks with the largest maxima
FEW_LOGITS = 1 << 15  # of all rows, up to which one argmax is faster than by chunks
KERNEL_TOP_K = 16  # largest k for which the top-k kernel is faster than torch.topk


class Listed(NamedTuple):
    """The tokens of a prediction that leaves out impossible ones."""

    tokens: Tensor  # [n], in ascending order
    vocabulary: int


@dataclass(frozen=True)
class Prediction:
    """The distribution of each row's next token: log p(token) = logits − norm.

    `norm` is NaN for a row of invalid logits (NaN, +inf, all −inf).
    """

    logits: Tensor  # [..., V], in the model's own precision
    norm: Tensor  # [...], in float32 or better
    first: Tensor | None = None  # [...], the most probable token (ties: the first), if computed
    peaks: Tensor | None = None  # [..., ⌈V / CHUNK⌉], the largest logit per chunk, if computed
    progress: Any = None  # of each row with phrases that its output must have, if there are any
    normal: bool = False  # the logits are log-probabilities
    listed: Listed | None = None  # whose logits these are; None: those of all tokens

    @classmethod
    def of(
        cls,
        model: Any,
        logits: object,
        rows: int,
        normalised: bool = False,
        vocabulary: int | None = None,
    ) -> Prediction:
        """Check the logits that a model's `step` returned, and normalise them.

        Args:
            model: named in error messages.
            logits: [rows, V], as `step` returned them.
            rows: the expected number of rows.
            normalised: the logits are log-probabilities already (`Capabilities.normalised`).
            vocabulary: the expected V, if known.

        Raises:
            ModelError: the logits have the wrong type or shape.
        """
        checked = ensure_logits(model, logits, rows, vocabulary)
        if fused(checked) and not normalised:
            from npad.kernels.tokens import normaliser

            contiguous = checked if checked.stride(-1) == 1 else checked.contiguous()
            return cls(contiguous, *normaliser(contiguous, CHUNK))
        precise = torch.promote_types(checked.dtype, torch.float32)
        if normalised:
            log_probs = checked.to(precise)
            probe = log_probs.amax(-1)  # one NaN makes the maximum NaN
        else:
            log_probs = torch.log_softmax(checked, -1, dtype=precise)
            probe = log_probs[:, 0]  # one NaN makes the whole row NaN
        norm = probe.masked_fill(probe == probe, 0)  # NaN alone is unequal to itself
        return cls(log_probs, norm, normal=True)

    def of_tokens(self, listed: Listed | None) -> Prediction:
        """Return the prediction with other tokens for the same logits."""
        fields = self.logits, self.norm, self.first, self.peaks, self.progress, self.normal
        return Prediction(*fields, listed)

    def map(self, function: Callable[[Tensor], Tensor]) -> Prediction:
        """Apply a function to each tensor; their first dimensions are the rows."""
        return Prediction(  # in each step, where `tree_map` would take several times as long
            function(self.logits),
            function(self.norm),
            None if self.first is None else function(self.first),
            None if self.peaks is None else function(self.peaks),
            None if self.progress is None else tree_map(function, self.progress),
            self.normal,
            self.listed,
        )

    def view(self, *shape: int) -> Prediction:
        """Reshape the rows [n]."""
        return self.map(lambda x: x.view(*shape, *x.shape[1:]))

    def expand(self, groups: int, width: int) -> Prediction:
        """Expand [groups, 1] to [groups, width]."""
        if self.norm.shape[1] == width:
            return self
        return self.map(lambda x: x.expand(groups, width, *x.shape[2:]))

    def at(self, tokens: Tensor) -> Tensor:
        """Return log p of tokens [..., k]."""
        if self.listed is None:
            return self.logits.gather(-1, tokens).to(self.norm.dtype) - self.norm[..., None]
        known = self.listed.tokens
        places = torch.searchsorted(known, tokens).clamp_(max=len(known) - 1)
        log_probs = self.of_tokens(None).at(places)
        return log_probs.masked_fill(known[places] != tokens, -torch.inf)

    def best(self) -> Tensor:
        """Return the most probable token [...], the first one on ties."""
        if self.first is not None:
            return self.first
        if self.listed is not None:
            return self.listed.tokens[self.of_tokens(None).best()]
        if self.logits.numel() <= FEW_LOGITS and self.peaks is None:
            return self.logits.argmax(-1)
        # amax is faster than argmax over the vocabulary: find the chunk, then the token in it.
        chunk = self._chunk_peaks().argmax(-1, keepdim=True)
        return self._chunk_logits(chunk).argmax(-1) + CHUNK * chunk.squeeze(-1)

    def greedy(self) -> tuple[Tensor, Tensor]:
        """Return the most probable token [...], the first one on ties, and its log p."""
        if self.first is None and self.peaks is None and self.logits.numel() <= FEW_LOGITS:
            logits, tokens = self.logits.max(-1)
            log_probs = logits.to(self.norm.dtype) - self.norm
            return tokens if self.listed is None else self.listed.tokens[tokens], log_probs
        tokens = self.best()
        return tokens, self.at(tokens[..., None]).squeeze(-1)

    def top(self, k: int) -> tuple[Tensor, Tensor]:
        """Return log p of the k most probable tokens, best first, and the tokens: [..., k] each."""
        if self.listed is not None:
            log_probs, places = self.of_tokens(None).top(k)
            return log_probs, self.listed.tokens[places]
        vocabulary = self.logits.shape[-1]
        if vocabulary <= k * CHUNK:
            logits, tokens = self.logits.topk(k, -1)
        elif self.peaks is not None and k <= KERNEL_TOP_K:
            from npad.kernels.tokens import top

            logits, tokens = top(self.logits, self.peaks, k, CHUNK)
        else:
            chunks = self._chunk_peaks().topk(k, -1).indices.sort(-1).values
            logits, place = self._chunk_logits(chunks).topk(k, -1)
            tokens = chunks.gather(-1, place // CHUNK) * CHUNK + place % CHUNK
        return logits.to(self.norm.dtype) - self.norm[..., None], tokens

    def dense(self) -> Tensor:
        """Return log p of every token, [..., V]."""
        logits = self.logits.to(self.norm.dtype)
        log_probs = logits if self.normal else logits - self.norm[..., None]
        if self.listed is None:
            return log_probs
        every = log_probs.new_full((*log_probs.shape[:-1], self.listed.vocabulary), -torch.inf)
        return every.index_copy_(-1, self.listed.tokens, log_probs)

    def _chunk_peaks(self) -> Tensor:
        if self.peaks is not None:
            return self.peaks
        even = self.logits.shape[-1] // CHUNK * CHUNK
        chunks = self.logits[..., :even].unflatten(-1, (-1, CHUNK))  # type: ignore[no-untyped-call]
        peaks = chunks.amax(-1)
        tail = self.logits[..., even:]
        return torch.cat([peaks, tail.amax(-1, keepdim=True)], -1) if tail.shape[-1] else peaks

    def _chunk_logits(self, chunks: Tensor) -> Tensor:
        """Return the logits of chunks [..., k], −inf past the last token: [..., k · CHUNK]."""
        last = self.logits.shape[-1] - 1
        offsets = torch.arange(CHUNK, device=chunks.device)
        tokens = (chunks[..., None] * CHUNK + offsets).flatten(-2)
        logits = self.logits.gather(-1, tokens.clamp(max=last))
        return logits.masked_fill(tokens > last, -torch.inf)
