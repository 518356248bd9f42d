"""Stochastic sampling from the output distribution (Cho, 2016, section 4.1)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from npad.errors import InvalidInput
from npad.model import Model
from npad.noise.random import Keys, fold, one_uniform
from npad.search.decoder import Decoder
from npad.search.hypotheses import Hypotheses
from npad.search.independent import walk
from npad.search.rows import Problems
from npad.validation import MAX_SEED, ensure_integer, ensure_number


@dataclass(frozen=True)
class Sampling(Decoder):
    """Draw `samples` hypotheses; return them all, most probable first, duplicates kept.

    Temperature, then `top_k`, then `top_p` (nucleus sampling) change the distribution that tokens
    are drawn from; log_prob is under the model's own distribution. A draw is keyed by (seed,
    sentence id, chain, sample, step), so it depends neither on the batch nor on the number of
    samples. Cost: `samples` rows.

    Attributes:
        samples: hypotheses per sentence.
        temperature: sharpens the distribution if below 1, flattens it if above.
        top_k: draw from the k most probable tokens.
        top_p: draw from the fewest most probable tokens whose probabilities sum to at least p.
        seed: the seed of the draws.
    """

    returns_several: ClassVar[bool] = True

    samples: int = field(default=50, metadata={"help": "samples per sentence", "title": "{}"})
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
        ensure_integer("seed", self.seed, maximum=MAX_SEED)
        if self.top_k is not None:
            ensure_integer("top_k", self.top_k, 1)
        if self.top_p is not None:
            ensure_number("top_p", self.top_p, above=0)
            if self.top_p > 1:
                raise InvalidInput(f"top_p must be a share of at most 1, not {self.top_p!r}")

    @property
    def rows(self) -> int:
        return self.samples

    def search(self, model: Model[Any], state: Any, problems: Problems) -> Hypotheses:
        return walk(model, state, problems, self._draws(problems), width=self.samples)

    def _draws(self, problems: Problems) -> Draw:
        return Draw(self, self._streams(problems))

    def _streams(self, problems: Problems) -> Tensor:
        """Return the random stream of each sample: [groups, samples]."""
        sample = torch.arange(self.samples, device=problems.ids.device)
        sample = sample.expand(len(problems), self.samples)
        ids, chains = (x[:, None].expand_as(sample) for x in (problems.ids, problems.chains))
        keys = Keys(self.seed, ids, chains, torch.zeros_like(sample), sample, "sampling")
        return keys.streams()


@dataclass(frozen=True)
class Draw:
    """Draw the next token of each row by inverting the cumulative distribution."""

    sampling: Sampling
    streams: Tensor  # [groups, samples], the random stream of each row

    def __call__(self, log_probs: Tensor, step: Tensor) -> Tensor:
        logits, top_k, top_p = log_probs, self.sampling.top_k, self.sampling.top_p
        if self.sampling.temperature != 1:
            # Subtract the maximum first, so that the division cannot overflow.
            temperature = max(self.sampling.temperature, torch.finfo(log_probs.dtype).tiny)
            logits = (log_probs - log_probs.amax(-1, keepdim=True)) / temperature
        logits = self._restricted(logits)
        if top_k is None and top_p is None:
            return self._draw(logits.softmax(-1), step)
        vocabulary = logits.shape[-1]
        ranked, tokens = logits.topk(vocabulary if top_k is None else min(top_k, vocabulary), -1)
        p = ranked.softmax(-1)
        if top_p is not None:
            outside = p.cumsum(-1) - p >= top_p
            # The most probable token always stays; index 0 as a tensor of the right device.
            p = p.masked_fill(outside.index_fill(-1, torch.zeros_like(step), False), 0)
        return tokens.gather(-1, self._draw(p, step)[..., None]).squeeze(-1)

    def _restricted(self, logits: Tensor) -> Tensor:
        """Return the logits [groups, samples, V], −inf for tokens that may not be drawn."""
        return logits

    def _draw(self, p: Tensor, step: Tensor) -> Tensor:
        """Return indices [groups, samples] drawn in proportion to p [groups, samples, n]."""
        cumulative = p.cumsum(-1)
        total = cumulative[..., -1:]
        threshold = one_uniform(fold(self.streams, step)).to(p.dtype)[..., None] * total
        # Rounding must not make the threshold reach the total, where no index follows.
        threshold = torch.minimum(threshold, torch.nextafter(total, torch.zeros_like(total)))
        drawn = torch.searchsorted(cumulative.contiguous(), threshold, right=True).squeeze(-1)
        return drawn.clamp(max=p.shape[-1] - 1)  # NaN gives n; the search loop reports it

    def groups(self, index: Tensor) -> Draw:
        return replace(self, streams=self.streams[index])
