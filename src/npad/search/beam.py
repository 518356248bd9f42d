"""Beam search: keep the `width` best prefixes (Cho, 2016, section 3.2), with three rules for those that end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from npad.engine.next_token import Prediction
from npad.errors import InvalidInput
from npad.model import Model
from npad.search.decoder import Decoder
from npad.search.history import History
from npad.search.hypotheses import Found
from npad.search.loop import run
from npad.search.rows import Problems, descending, rows_from
from npad.validation import ensure_choice, ensure_integer

Finish = Literal["shrink", "compete", "pool"]


@dataclass(frozen=True)
class Beam(Decoder):
    """Extend the `width` best prefixes by every symbol, keep the best of all; return the `nbest` best that ended.

    finish says what becomes of a hypothesis that ends:

    - "shrink", the paper's: it is complete and leaves, and the beam is one narrower from then on;
    - "compete": it keeps its place in the beam as long as nothing better pushes it out;
    - "pool": it goes to a pool of the `width` best, and the beam stays full (as transformers does).

    Cost: `width` rows a step, one at the first. Scores only fall, so a sentence is settled, whatever the rule, once
    `nbest` finished hypotheses beat everything alive.
    """

    width: int = field(default=5, metadata={"help": "hypotheses kept at each step", "title": "{}"})
    finish: Finish = field(
        default="shrink",
        metadata={"help": "what a finished hypothesis does: shrink, compete or pool"},
    )
    nbest: int = 1

    def __post_init__(self) -> None:
        ensure_integer("width", self.width, 1)
        ensure_choice("finish", self.finish, tuple(RULES))
        ensure_integer("nbest", self.nbest, 1)
        if self.nbest > self.width:
            raise InvalidInput(f"nbest must be at most the width, {self.width}, not {self.nbest}")

    @property
    def rows(self) -> int:
        return self.width

    def all_candidates(self) -> Beam:
        return replace(self, nbest=self.width)

    def search(self, model: Model[Any], state: Any, problems: Problems) -> Found:
        return beam_search(model, state, problems, self, by_score)


def by_score(children: Tensor) -> Tensor:
    """Rank children by their own scores."""
    return children


class Candidates(NamedTuple):
    """Extensions of the beam, best rank first: each [groups, n]."""

    scores: Tensor  # −inf where there is none
    parents: Tensor  # the slot each extends
    tokens: Tensor
    ends: Tensor

    def at(self, index: Tensor) -> Candidates:
        return Candidates(*(x.gather(1, index) for x in self))


class Ended(NamedTuple):
    """The finished hypotheses, best first: each [groups, width]."""

    scores: Tensor  # −inf where there is none
    parents: Tensor  # the slot it ended from
    lengths: Tensor  # without the end token

    @property
    def exists(self) -> Tensor:
        return self.scores > -torch.inf

    def merge(self, newly: Ended) -> Ended:
        """Keep the best of these and those that just ended."""
        merged = [torch.cat(pair, 1) for pair in zip(self, newly, strict=True)]
        best = descending(merged[0])[:, : self.scores.shape[1]]
        return Ended(*(x.gather(1, best) for x in merged))


# A rule takes the ended hypotheses, the candidates and the width. It returns which of the ended
# stay [groups, width], which candidates join them and which live on [groups, n].
Rule = Callable[[Ended, Candidates, int], tuple[Tensor, Tensor, Tensor]]


def shrink(ended: Ended, candidates: Candidates, width: int) -> tuple[Tensor, Tensor, Tensor]:
    """Narrow the beam by one for each finished hypothesis (finish="shrink", the paper's rule)."""
    places = width - ended.exists.sum(1, keepdim=True)
    taken = _rank(candidates) < places
    return ended.exists, taken & candidates.ends, taken & ~candidates.ends


def compete(ended: Ended, candidates: Candidates, width: int) -> tuple[Tensor, Tensor, Tensor]:
    """Let finished hypotheses keep a slot while among the best `width` (finish="compete")."""
    scores = torch.cat([ended.scores, candidates.scores], 1)
    best = descending(scores)[:, :width]
    taken = torch.zeros_like(scores, dtype=torch.bool).scatter(1, best, True)
    stay, taken = taken[:, :width], taken[:, width:]
    return stay, taken & candidates.ends, taken & ~candidates.ends


def pool(ended: Ended, candidates: Candidates, width: int) -> tuple[Tensor, Tensor, Tensor]:
    """Finished hypotheses move to a pool of their own; `width` stay alive (finish="pool")."""
    joins = candidates.ends & (_rank(candidates) < width)
    return ended.exists, joins, ~candidates.ends


def _rank(candidates: Candidates) -> Tensor:
    return torch.arange(candidates.scores.shape[1], device=candidates.scores.device)


RULES: dict[str, Rule] = {"shrink": shrink, "compete": compete, "pool": pool}


@dataclass(frozen=True)
class BeamFrontier:
    """The live prefixes of each group, best first, and the ended hypotheses.

    An unused slot repeats the first prefix, at −inf.
    """

    beam: Beam
    rank: Callable[[Tensor], Tensor]  # children [groups, width, n], best first -> ranking scores
    eos: int
    pad: int
    tokens: Tensor  # [groups, width], or [groups, 1] before the first step
    scores: Tensor  # [groups, width]
    ended: Ended
    history: History
    broken: Tensor  # [], whether a live row was no distribution

    @property
    def live(self) -> Tensor:
        return self.scores > -torch.inf

    def advance(self, predicted: Prediction) -> tuple[BeamFrontier, Tensor]:
        candidates = self._candidates(predicted)
        stay, join, live = RULES[self.beam.finish](self.ended, candidates, self.beam.width)

        kept = self.ended._replace(scores=self.ended.scores.masked_fill(~stay, -torch.inf))
        newly_ended = Ended(
            scores=candidates.scores.masked_fill(~join, -torch.inf),
            parents=candidates.parents,
            lengths=self.history.step.expand_as(candidates.parents),
        )
        live_scores = candidates.scores.masked_fill(~live, -torch.inf)
        order = descending(live_scores)[:, : self.beam.width]
        scores = live_scores.gather(1, order)
        chosen = candidates.at(torch.where(scores > -torch.inf, order, order[:, :1]))

        after = replace(
            self,
            tokens=chosen.tokens,
            scores=scores,
            ended=kept.merge(newly_ended),
            history=self.history.append(chosen.tokens, chosen.parents),
            broken=self.broken | (predicted.norm.isnan() & self.live).any(),
        )
        return after, rows_from(chosen.parents, self.tokens.shape[1])

    def _candidates(self, predicted: Prediction) -> Candidates:
        """Return the best extensions of [groups, width] prefixes: twice the width, for any rule.

        Of one parent, one more than the width is enough: as many that live on, and its end. They
        are ordered by their own probability, of equals the first token first, as greedy search
        takes it: sums would round it away.
        """
        width = self.beam.width
        log_probs, tokens = predicted.top(min(width + 1, predicted.logits.shape[-1]))
        first = predicted.best()[..., None]
        tokens = torch.where(tokens == first, tokens[..., :1], tokens)
        tokens = torch.cat([first, tokens[..., 1:]], -1)
        # A slot that is not live may hold NaN: mask it after the sum.
        children = self.scores[..., None] + log_probs
        children = children.masked_fill(~self.live[..., None], -torch.inf)
        chosen = descending(self.rank(children).flatten(1))[:, : 2 * width]
        scores, chosen_tokens = (x.flatten(1).gather(1, chosen) for x in (children, tokens))
        candidates = Candidates(
            scores=scores,
            parents=chosen // children.shape[-1],
            tokens=chosen_tokens,
            ends=chosen_tokens == self.eos,
        )
        missing = max(0, width - scores.shape[1])
        return Candidates(
            F.pad(candidates.scores, (0, missing), value=-torch.inf),
            *(F.pad(x, (0, missing)) for x in candidates[1:]),
        )

    def done(self) -> Tensor:
        return self.ended.scores[:, self.beam.nbest - 1] >= self.scores[:, 0]

    def groups(self, index: Tensor) -> BeamFrontier:
        return replace(
            self,
            tokens=self.tokens[index],
            scores=self.scores[index],
            ended=Ended(*(x[index] for x in self.ended)),
            history=self.history.groups(index),
        )

    def found(self) -> Found:
        """Return the best that ended, then the best that were cut short."""
        slots = torch.arange(self.scores.shape[1], device=self.scores.device)
        cut = Ended(
            scores=self.scores,
            parents=slots.expand_as(self.scores),
            lengths=self.history.step.expand_as(self.scores),
        )
        both = Ended(*(torch.cat(pair, 1) for pair in zip(self.ended, cut, strict=True)))
        finished = torch.arange(both.scores.shape[1], device=slots.device) < self.beam.width
        lengths = both.lengths.masked_fill(~both.exists, -1)
        found = self.history.found(
            both.parents, lengths, finished.expand_as(lengths), both.scores, self.pad
        )
        best = torch.arange(self.beam.nbest, device=slots.device).expand(len(lengths), -1)
        return found.best_first().at(best)


def beam_search(
    model: Model[Any],
    state: Any,
    problems: Problems,
    beam: Beam,
    rank: Callable[[Tensor], Tensor],
) -> Found:
    """Run a beam search whose children are ranked by `rank`."""
    special, groups, device = model.special, len(problems), problems.ids.device
    no_scores = torch.full((groups, beam.width), -torch.inf, device=device)
    zeros = torch.zeros_like(no_scores, dtype=torch.long)
    frontier = BeamFrontier(
        beam=beam,
        rank=rank,
        eos=special.eos,
        pad=special.pad,
        tokens=torch.full((groups, 1), special.bos, device=device),
        scores=torch.zeros(groups, 1, device=device),
        ended=Ended(no_scores, zeros, zeros),
        history=History.empty(groups, beam.width, problems.max_length, special.pad, device),
        broken=torch.zeros((), dtype=torch.bool, device=device),
    )
    return run(model, state, frontier, problems, rows=beam.width)
