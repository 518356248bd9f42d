"""Stochastic sampling from the output distribution (Cho, 2016, section 4.1), and variants."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from npad.engine.next_token import CHUNK
from npad.hypotheses import Hypotheses
from npad.model import Capabilities, Model
from npad.noise.random import Keys, fold, one_uniform
from npad.rows import Problems
from npad.search.decoder import Decoder
from npad.search.independent import walk
from npad.search.shared_prefixes import SharedPrefixes
from npad.validation import MAX_SEED


@dataclass(frozen=True)
class Sampling(Decoder):
    """Draw hypotheses at random; return all, most probable first.

    Duplicates are kept. Temperature, then `top_k`, then `top_p` (nucleus sampling) change the
    distribution that tokens are drawn from; log_prob is under the model's own distribution. A draw
    is keyed by (seed, sentence id, chain, sample, step), so it depends neither on the batch nor on
    the number of samples. Cost: `samples` rows.

    Attributes:
        samples: hypotheses per sentence.
        temperature: sharpens the distribution if below 1, flattens it if above.
        top_k: draw from the k most probable tokens.
        top_p: draw from the fewest most probable tokens whose probabilities sum to at least p.
        seed: the seed of the draws.
    """

    returns_several: ClassVar[bool] = True
    everyday: ClassVar[bool] = True
    example: ClassVar[str] = "--samples 50 --temperature 0.5 --selector mbr"
    page: ClassVar[str] = "decoding.md#stochastic-sampling"
    draws: ClassVar[bool] = True

    samples: int = field(
        default=50,
        metadata={"help": "samples per sentence", "title": "{}", "minimum": 1, "everyday": True},
    )
    temperature: float = field(
        default=1.0,
        metadata={
            "help": "below 1 sharpens the distribution, above 1 flattens it",
            "above": 0,
        },
    )
    top_k: int | None = field(
        default=None, metadata={"help": "draw from the N most probable tokens", "minimum": 1}
    )
    top_p: float | None = field(
        default=None,
        metadata={
            "help": "draw from the fewest tokens that reach N together",
            "above": 0,
            "maximum": 1,
        },
    )
    seed: int = field(
        default=0, metadata={"help": "another seed draws other randomness", "maximum": MAX_SEED}
    )

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
            return self._draw(logits.exp(), step)
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
        """Return indices [groups, samples] drawn in proportion to p [groups, samples, n].

        First a chunk is drawn, then an index: sums are vectorised, cumulative sums are not.
        """
        last, uniform = p.shape[-1] - 1, one_uniform(fold(self.streams, step)).to(p.dtype)
        even = p.shape[-1] // CHUNK * CHUNK
        sums = p[..., :even].unflatten(-1, (-1, CHUNK)).sum(-1)  # type: ignore[no-untyped-call]
        cumulative = torch.cat([sums, p[..., even:].sum(-1, keepdim=True)], -1).cumsum(-1)
        chunk, before = inverted(cumulative, uniform[..., None] * cumulative[..., -1:])
        indices = CHUNK * chunk + torch.arange(CHUNK, device=p.device)
        within = p.gather(-1, indices.clamp(max=last)).masked_fill(indices > last, 0)
        place, _ = inverted(within.cumsum(-1), before)
        return (CHUNK * chunk + place).squeeze(-1).clamp(max=last)

    def groups(self, index: Tensor) -> Draw:
        return replace(self, streams=self.streams[index])


def inverted(cumulative: Tensor, threshold: Tensor) -> tuple[Tensor, Tensor]:
    """Return where sums [..., n] first exceed a threshold [..., 1], and its excess."""
    total = cumulative[..., -1:]
    # Rounding must not make the threshold reach the total, where no index follows.
    threshold = torch.minimum(threshold, torch.nextafter(total, torch.zeros_like(total)))
    index = torch.searchsorted(cumulative.contiguous(), threshold.contiguous(), right=True)
    index = index.clamp(max=cumulative.shape[-1] - 1)
    previous = cumulative.gather(-1, (index - 1).clamp(min=0)).masked_fill(index == 0, 0)
    return index, threshold - previous


@dataclass(frozen=True)
class SharedSampling(Sampling):
    """Sampling with one row per distinct prefix: fewer model calls.

    A sample's state depends on its prefix alone: while samples agree, they are one row. Needs a
    model that is a `PrefixSharer`; over others, and over noisy ones, it is `Sampling`. The host
    plans the rows of every step, so that on a GPU it pays where rows cost more than launches.
    Cost: the distinct prefixes of the samples.
    """

    compared: ClassVar[bool] = False
    everyday: ClassVar[bool] = False
    page: ClassVar[str] = "actors.md#samples-to-compare-with"

    def search(self, model: Model[Any], state: Any, problems: Problems) -> Hypotheses:
        if Capabilities.of(model).prefix_sharer is None or problems.per_sentence > 1:
            return super().search(model, state, problems)
        shared = SharedPrefixes(model)
        return super().search(shared, shared.attach(state, len(problems)), problems)


@dataclass(frozen=True)
class Epsilon(Sampling):
    """Sampling that never draws improbable tokens.

    Epsilon sampling (Hewitt, Manning & Liang, 2022). Draws from the tokens whose probability is at
    least `epsilon`, and the most probable one.

    The other fields, the keys of the draws and the cost are those of `Sampling`; the cut comes
    after the temperature, and before `top_k` and `top_p`.

    Attributes:
        epsilon: the least probability of a token that may be drawn.
    """

    compared: ClassVar[bool] = False
    everyday: ClassVar[bool] = False
    example: ClassVar[str] = "--epsilon 0.05 --samples 20"
    page: ClassVar[str] = "actors.md#samples-to-compare-with"

    epsilon: float = field(
        default=0.02,
        metadata={"help": "draw from the tokens of probability N and more", "above": 0, "below": 1},
    )

    def _draws(self, problems: Problems) -> EpsilonDraw:
        return EpsilonDraw(self, self._streams(problems))


@dataclass(frozen=True)
class EpsilonDraw(Draw):
    """Draw without the tokens of probability below epsilon."""

    def _restricted(self, logits: Tensor) -> Tensor:
        assert isinstance(self.sampling, Epsilon)
        p = logits.softmax(-1)
        rare = (p < self.sampling.epsilon) & (p < p.amax(-1, keepdim=True))
        return logits.masked_fill(rare, -torch.inf)
