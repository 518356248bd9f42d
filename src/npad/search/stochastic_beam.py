"""Stochastic beam search (Kool, van Hoof & Welling, 2019): samples without replacement.

Add Gumbel noise to the log-probability of every output; the k largest are k samples without
replacement. A prefix's noisy score is the largest of its outputs', so a beam finds them: the noisy
scores of children are drawn given that their maximum is the parent's.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from npad.engine.next_token import Prediction
from npad.hypotheses import Hypotheses
from npad.model import Model
from npad.noise.random import Keys, draw, fold, uniform
from npad.rows import Problems, rows_from
from npad.search.decoder import Decoder
from npad.search.history import History
from npad.search.loop import run
from npad.validation import MAX_SEED


@dataclass(frozen=True)
class StochasticBeam(Decoder):
    """Draw distinct hypotheses, without replacement.

    They are returned most probable first. The noise of a token is keyed by (seed, sentence id,
    chain) and the prefix, so that a narrower beam returns the first of a wider one's samples. Cost:
    `width` rows per step, one at the first.

    Attributes:
        width: samples per sentence.
        seed: the seed of the noise.
    """

    returns_several: ClassVar[bool] = True
    draws: ClassVar[bool] = True
    compared: ClassVar[bool] = False
    example: ClassVar[str] = "--width 20"
    page: ClassVar[str] = "actors.md#samples-to-compare-with"

    width: int = field(
        default=5, metadata={"help": "hypotheses kept at each step", "title": "{}", "minimum": 1}
    )
    seed: int = field(
        default=0, metadata={"help": "another seed draws other randomness", "maximum": MAX_SEED}
    )

    @property
    def rows(self) -> int:
        return self.width

    def search(self, model: Model[Any], state: Any, problems: Problems) -> Hypotheses:
        special, groups, device = model.special, len(problems), problems.ids.device
        zeros = torch.zeros_like(problems.ids)
        keys = Keys(self.seed, problems.ids, problems.chains, zeros, zeros, "stochastic beam")
        scores = torch.zeros(groups, 1, dtype=torch.float64, device=device)
        frontier = StochasticFrontier(
            width=self.width,
            eos=special.eos,
            pad=special.pad,
            tokens=torch.full((groups, 1), special.bos, device=device),
            streams=keys.streams()[:, None],
            scores=scores,
            noisy=scores,
            finished=torch.zeros(groups, 1, dtype=torch.bool, device=device),
            lengths=zeros[:, None],
            last=zeros[:, None],
            history=History.empty(groups, self.width, problems.max_length, special.pad, device),
            broken=torch.zeros((), dtype=torch.bool, device=device),
        )
        return run(model, state, frontier, problems, rows=self.width)


@dataclass(frozen=True)
class StochasticFrontier:
    """The prefixes of each group, live and finished, by noisy score; an empty slot is at −inf."""

    width: int
    eos: int
    pad: int
    tokens: Tensor  # [groups, width], or [groups, 1] before the first step; here and below
    streams: Tensor  # the random stream of each prefix
    scores: Tensor  # log-probability
    noisy: Tensor  # the largest noisy log-probability of the outputs that start so
    finished: Tensor
    lengths: Tensor  # without the end token
    last: Tensor  # the slot at the last token, of finished hypotheses
    history: History
    broken: Tensor  # [], whether a live row ever had invalid logits

    def advance(self, predicted: Prediction) -> tuple[StochasticFrontier, Tensor]:
        log_probs = predicted.dense().to(torch.float64)
        _, slots, vocabulary = log_probs.shape
        live = ~self.finished & (self.noisy > -torch.inf)
        scores = self.scores[..., None] + log_probs
        drawn = draw(self.streams.flatten(), vocabulary, uniform).view_as(log_probs)
        gumbel = -(-drawn.to(torch.float64).log()).log()
        noisy = given_maximum(scores + gumbel, self.noisy[..., None])
        noisy = noisy.masked_fill(~live[..., None] | (scores == -torch.inf), -torch.inf)
        # A finished hypothesis continues as itself, by its end token.
        ends = torch.arange(vocabulary, device=noisy.device) == self.eos
        itself = self.finished[..., None] & ends
        noisy = torch.where(itself, self.noisy[..., None], noisy)
        scores = torch.where(itself, self.scores[..., None], scores)

        count = min(self.width, slots * vocabulary)
        best, chosen = noisy.flatten(1).topk(count, 1)
        if count < self.width:  # a vocabulary smaller than the beam
            missing = self.width - count
            best = torch.nn.functional.pad(best, (0, missing), value=-torch.inf)
            chosen = torch.nn.functional.pad(chosen, (0, missing))
        parents, tokens = chosen // vocabulary, chosen % vocabulary
        was_finished = self.finished.gather(1, parents)
        finished = was_finished | (tokens == self.eos)
        advanced = replace(
            self,
            tokens=tokens,
            streams=fold(self.streams.gather(1, parents), tokens),
            scores=scores.flatten(1).gather(1, chosen),
            noisy=best,
            finished=finished,
            lengths=self.lengths.gather(1, parents) + ~finished,
            last=torch.where(was_finished, self.last.gather(1, parents), parents),
            history=self.history.append(tokens, parents),
            broken=self.broken | (predicted.norm.isnan() & live).any(),
        )
        return advanced, rows_from(parents, slots)

    def done(self) -> Tensor:
        return (self.finished | (self.noisy == -torch.inf)).all(1)

    def groups(self, index: Tensor) -> StochasticFrontier:
        names = ("tokens", "streams", "scores", "noisy", "finished", "lengths", "last")
        chosen = {name: getattr(self, name)[index] for name in names}
        return replace(self, **chosen, history=self.history.groups(index))

    def hypotheses(self) -> Hypotheses:
        slots = torch.arange(self.scores.shape[1], device=self.scores.device)
        slots = torch.where(self.finished, self.last, slots.expand_as(self.last))
        lengths = self.lengths.masked_fill(self.noisy == -torch.inf, -1)
        hypotheses = self.history.trace(slots, lengths, self.finished, self.scores, self.pad)
        return hypotheses.best_first()


def given_maximum(noisy: Tensor, maximum: Tensor) -> Tensor:
    """Condition independent Gumbel variables [..., n] on their largest being `maximum` [..., 1].

    −log(exp(−maximum) − exp(−largest) + exp(−noisy)), computed as in Kool et al., appendix B.3.
    """
    below = noisy - noisy.amax(-1, keepdim=True)  # at most 0
    near = torch.log(-torch.expm1(below.clamp(min=-0.7)))
    far = torch.log1p(-torch.exp(below.clamp(max=-0.6)))
    v = maximum - noisy + torch.where(below > -0.65, near, far)
    return maximum - v.clamp(min=0) - torch.log1p(torch.exp(-v.abs()))
