"""Stochastic sampling: draw every symbol from the output distribution, several times over (Cho, 2016, section 4.1)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from npad.errors import InvalidInput
from npad.model import Model
from npad.noise.random import Keys, fold, one_uniform
from npad.search.decoder import Decoder
from npad.search.hypotheses import Found
from npad.search.independent import walk
from npad.search.rows import Problems
from npad.validation import MAX_SEED, ensure_integer, ensure_number


@dataclass(frozen=True)
class Sampling(Decoder):
    """Draw `samples` hypotheses and return them all, the most probable first, duplicates kept. Cost: `samples` rows.

    temperature sharpens (below 1) or flattens the distribution that is drawn from; `top_k` keeps its k most probable
    symbols, `top_p` the fewest that together reach p, in that order. log_prob is the model's own all the same. A draw
    is keyed by (seed, sentence id, chain, sample, step): it does not depend on the batch or the number of samples.
    """

    returns_several: ClassVar[bool] = True

    samples: int = field(default=50, metadata={"help": "samples a sentence", "title": "{}"})
    temperature: float = field(
        default=1.0, metadata={"help": "below 1 sharpens the distribution, above 1 flattens it"}
    )
    top_k: int | None = field(
        default=None, metadata={"help": "draw from the N most probable tokens"}
    )
    top_p: float | None = field(
        default=None, metadata={"help": "draw from the fewest tokens that reach N together"}
    )
    seed: int = field(default=0, metadata={"help": "another seed draws other randomness"})

    def __post_init__(self) -> None:
        ensure_integer("samples", self.samples, 1)
        ensure_number("temperature", self.temperature, above=0)
        ensure_integer("seed", self.seed, most=MAX_SEED)
        if self.top_k is not None:
            ensure_integer("top_k", self.top_k, 1)
        if self.top_p is not None:
            ensure_number("top_p", self.top_p, above=0)
            if self.top_p > 1:
                raise InvalidInput(f"top_p must be a share of at most 1, not {self.top_p!r}")

    @property
    def rows(self) -> int:
        return self.samples

    def search(self, model: Model[Any], state: Any, problems: Problems) -> Found:
        sample = torch.arange(self.samples, device=problems.ids.device).expand(
            len(problems), self.samples
        )
        ids, chains = (x[:, None].expand_as(sample) for x in (problems.ids, problems.chains))
        streams = Keys(
            self.seed, ids, chains, torch.zeros_like(sample), sample, "sampling"
        ).streams()
        return walk(model, state, problems, Draw(self, streams), width=self.samples)


@dataclass(frozen=True)
class Draw:
    """One uniform number a row against the cumulative distribution."""

    how: Sampling
    streams: Tensor  # [groups, samples]

    def __call__(self, log_probs: Tensor, step: Tensor) -> Tensor:
        logits = log_probs
        if self.how.temperature != 1:  # from the best one down, so that nothing overflows
            smallest = torch.finfo(log_probs.dtype).tiny
            logits = (log_probs - log_probs.amax(-1, keepdim=True)) / max(
                self.how.temperature, smallest
            )
        if self.how.top_k is None and self.how.top_p is None:
            return self._draw(logits.softmax(-1), step)
        kept = logits.shape[-1] if self.how.top_k is None else min(self.how.top_k, logits.shape[-1])
        ranked, symbols = logits.topk(kept, -1)
        p = ranked.softmax(-1)
        if self.how.top_p is not None:
            before = p.cumsum(-1) - p  # the most probable one is always kept
            p = p.masked_fill(
                (before >= self.how.top_p).index_fill(-1, torch.zeros_like(step), False), 0
            )
        return symbols.gather(-1, self._draw(p, step)[..., None]).squeeze(-1)

    def _draw(self, p: Tensor, step: Tensor) -> Tensor:
        """The first place where the cumulative sum of p [groups, samples, n] passes a uniform share of its total."""
        total = p.cumsum(-1)
        share = one_uniform(fold(self.streams, step)).to(p.dtype)[..., None] * total[..., -1:]
        below_all = torch.nextafter(
            total[..., -1:], torch.zeros_like(share)
        )  # rounding must not reach the total
        drawn = torch.searchsorted(total.contiguous(), torch.minimum(share, below_all), right=True)
        return drawn.squeeze(-1).clamp(
            max=p.shape[-1] - 1
        )  # NaN would lie beyond; `run` reports it

    def groups(self, index: Tensor) -> Draw:
        return Draw(self.how, self.streams[index])
