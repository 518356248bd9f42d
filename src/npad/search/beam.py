"""Beam search: keep the `width` best prefixes (Cho, 2016, section 3.2).

Three rules decide what happens to finished hypotheses: shrink, compete and pool.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from npad.engine.next_token import Prediction
from npad.errors import InvalidInput
from npad.hypotheses import Hypotheses
from npad.model import Model
from npad.rows import Problems, descending, places_among_equals, rows_from
from npad.search.decoder import Decoder
from npad.search.history import History
from npad.search.loop import run

Finish = Literal["shrink", "compete", "pool"]


@dataclass(frozen=True)
class Beam(Decoder):
    """Keep the best prefixes at every step.

    Every token extends every prefix, and the best `width` of all extensions are kept. `finish`
    decides what happens when a hypothesis reaches the end token:

    - "shrink", the paper's rule: it leaves the beam, which is one narrower from then on;
    - "compete": it keeps its slot in the beam until better hypotheses push it out;
    - "pool": it moves to a pool of the `width` best, and the beam stays full (as in transformers).

    Returns the `nbest` best finished hypotheses. A log-probability never rises as tokens are added,
    so under every rule a sentence is done once `nbest` finished hypotheses beat all live prefixes.
    Cost: `width` rows per step, one at the first.
    """

    everyday: ClassVar[bool] = True
    example: ClassVar[str] = "--width 10 --selector length-normalised"
    page: ClassVar[str] = "decoding.md#beam-search"

    width: int = field(
        default=5,
        metadata={
            "help": "hypotheses kept at each step",
            "title": "{}",
            "minimum": 1,
            "everyday": True,
        },
    )
    finish: Finish = field(
        default="shrink",
        metadata={"help": "what a finished hypothesis does: shrink, compete or pool"},
    )
    nbest: int = field(default=1, metadata={"minimum": 1})

    compares_prefixes: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.nbest > self.width:
            raise InvalidInput(f"nbest must be at most the width, {self.width}, not {self.nbest}")

    @property
    def rows(self) -> int:
        return self.width

    @property
    def from_one_beam(self) -> bool:
        return True

    def all_candidates(self) -> Beam:
        return replace(self, nbest=self.width)

    def search(self, model: Model[Any], state: Any, problems: Problems) -> Hypotheses:
        return beam_search(model, state, problems, self, by_score)


def by_score(children: Tensor) -> Tensor:
    """Rank children by score, without a penalty."""
    return children


class Candidates(NamedTuple):
    """Extensions of the beam, best rank first: all [groups, n]."""

    scores: Tensor  # −inf marks an empty place
    parents: Tensor  # the slot that is extended
    tokens: Tensor
    ends: Tensor  # whether the token is the end token
    met: Tensor  # whether all required phrases are written

    def at(self, index: Tensor) -> Candidates:
        return Candidates(*(x.gather(1, index) for x in self))


class Ended(NamedTuple):
    """The finished hypotheses, best first: all [groups, width]."""

    scores: Tensor  # −inf marks an empty place
    parents: Tensor  # the slot of the prefix that ended
    lengths: Tensor  # without the end token

    @property
    def exists(self) -> Tensor:
        return self.scores > -torch.inf

    def merge(self, newly_ended: Ended) -> Ended:
        """Return the best `width` of these and the newly ended hypotheses."""
        merged = [torch.cat(pair, 1) for pair in zip(self, newly_ended, strict=True)]
        best = descending(merged[0])[:, : self.scores.shape[1]]
        return Ended(*(x.gather(1, best) for x in merged))


# A rule maps the ended hypotheses, the candidates and the width to three masks: the ended
# hypotheses that stay [groups, width], and the candidates that join them and that stay live
# [groups, n].
Rule = Callable[[Ended, Candidates, int], tuple[Tensor, Tensor, Tensor]]


def shrink(ended: Ended, candidates: Candidates, width: int) -> tuple[Tensor, Tensor, Tensor]:
    """Narrow the beam by one for each finished hypothesis (finish="shrink", the paper's rule)."""
    beam_width = width - ended.exists.sum(1, keepdim=True)
    kept = _rank(candidates) < beam_width
    return ended.exists, kept & candidates.ends, kept & ~candidates.ends


def compete(ended: Ended, candidates: Candidates, width: int) -> tuple[Tensor, Tensor, Tensor]:
    """Let finished hypotheses keep a slot while among the best `width` (finish="compete")."""
    scores = torch.cat([ended.scores, candidates.scores], 1)
    best = descending(scores)[:, :width]
    kept = torch.zeros_like(scores, dtype=torch.bool).scatter(1, best, True)
    stay, kept = kept[:, :width], kept[:, width:]
    return stay, kept & candidates.ends, kept & ~candidates.ends


def pool(ended: Ended, candidates: Candidates, width: int) -> tuple[Tensor, Tensor, Tensor]:
    """Move finished hypotheses to a separate pool; `width` prefixes stay live (finish="pool")."""
    joins = candidates.ends & (_rank(candidates) < width)
    return ended.exists, joins, ~candidates.ends


def _rank(candidates: Candidates) -> Tensor:
    return torch.arange(candidates.scores.shape[1], device=candidates.scores.device)


def allocated(rule: Rule) -> Rule:
    """Return a rule that keeps as many live candidates as the width, in their order."""

    def keep(ended: Ended, candidates: Candidates, width: int) -> tuple[Tensor, Tensor, Tensor]:
        stay, join, live = rule(ended, candidates, width)
        return stay, join, live & (live.cumsum(1) <= width)

    return keep


RULES: dict[str, Rule] = {"shrink": shrink, "compete": compete, "pool": pool}
# Where slots are allocated, a finished hypothesis cannot keep one by its score alone.
ALLOCATED = {"shrink": shrink, "compete": allocated(pool), "pool": allocated(pool)}


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
    broken: Tensor  # [], whether a live row ever had invalid logits
    met: Tensor | None = None  # [groups, width], whether all required phrases are written

    @property
    def live(self) -> Tensor:
        return self.scores > -torch.inf

    def advance(self, predicted: Prediction) -> tuple[BeamFrontier, Tensor]:
        if predicted.progress is None:
            candidates = self._candidates(predicted)
            rule = RULES[self.beam.finish]
        else:
            candidates = self._allocated(predicted)
            rule = ALLOCATED[self.beam.finish]
        stay, join, live = rule(self.ended, candidates, self.beam.width)

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

        advanced = replace(
            self,
            tokens=chosen.tokens,
            scores=scores,
            ended=kept.merge(newly_ended),
            history=self.history.append(chosen.tokens, chosen.parents),
            broken=self.broken | (predicted.norm.isnan() & self.live).any(),
            met=None if predicted.progress is None else chosen.met,
        )
        return advanced, rows_from(chosen.parents, self.tokens.shape[1])

    def _candidates(self, predicted: Prediction) -> Candidates:
        """Return the 2 · width best extensions of the live prefixes: enough for any rule.

        width + 1 children per parent suffice: `width` that stay live, and the end token. Children
        are ordered by their own log-probability, ties by token, as in greedy search: in the sum
        with the parent's score, small differences would be rounded away.
        """
        children, tokens = self._children(predicted)
        order = descending(self.rank(children).flatten(1))
        return self._chosen(children, tokens, order, torch.ones_like(order, dtype=torch.bool))

    def _allocated(self, predicted: Prediction) -> Candidates:
        """Return extensions in the order of dynamic beam allocation (Post & Vilar, 2018).

        Children with as many tokens of the required phrases are a bank. Each bank in turn gives its
        best child, those with more tokens first, until the beam is full. None ends that lacks a
        phrase.
        """
        progress, tokens = predicted.progress, None
        children, tokens = self._children(predicted)
        ends = tokens == self.eos
        children = children.masked_fill(ends & ~progress.met[..., None], -torch.inf)
        wanted = progress.wanted
        known = (wanted[..., None] == tokens[..., None, :]).any(-1)
        earlier = (wanted[..., None] == wanted[..., None, :]).tril(-1).any(-1)
        useless = known | earlier | (wanted < 0) | ~self.live[..., None]
        gains = predicted.at(wanted.clamp(min=0))
        more = (self.scores[..., None] + gains).masked_fill(useless, -torch.inf)
        children, tokens = torch.cat([children, more], -1), torch.cat([tokens, wanted], -1)
        counts = progress.counts_after(tokens)
        counts = torch.where(tokens == self.eos, progress.count[..., None], counts).flatten(1)
        order = descending(self.rank(children).flatten(1))
        banks = counts.gather(1, order)
        possible = children.flatten(1).gather(1, order) > -torch.inf
        turns = places_among_equals(torch.where(possible, banks, -1))  # better ones in the bank
        turns = torch.where(possible, turns, turns.shape[1])
        by_turn = descending(-turns * (banks.amax() + 1) + banks)
        met = counts == progress.lengths.sum(-1)[:, :1]
        return self._chosen(children, tokens.clamp(min=0), order.gather(1, by_turn), met)

    def _children(self, predicted: Prediction) -> tuple[Tensor, Tensor]:
        """Return the width + 1 best children of each slot, their scores and their tokens."""
        width = self.beam.width
        log_probs, tokens = predicted.top(min(width + 1, predicted.logits.shape[-1]))
        first = predicted.best()[..., None]
        tokens = torch.where(tokens == first, tokens[..., :1], tokens)
        tokens = torch.cat([first, tokens[..., 1:]], -1)
        # Mask after the sum: a slot that is not live may hold NaN.
        children = self.scores[..., None] + log_probs
        return children.masked_fill(~self.live[..., None], -torch.inf), tokens

    def _chosen(self, children: Tensor, tokens: Tensor, order: Tensor, met: Tensor) -> Candidates:
        """Return the first 2 · width children [groups, width, n] in an order [groups, …].

        met: [groups, width · n], whether all required phrases are written.
        """
        width = self.beam.width
        chosen = order[:, : 2 * width]
        scores, chosen_tokens = (x.flatten(1).gather(1, chosen) for x in (children, tokens))
        candidates = Candidates(
            scores=scores,
            parents=chosen // children.shape[-1],
            tokens=chosen_tokens,
            ends=chosen_tokens == self.eos,
            met=met.gather(1, chosen),
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
            met=None if self.met is None else self.met[index],
        )

    def hypotheses(self) -> Hypotheses:
        """Return the `nbest` best: finished hypotheses first, then those cut at max_length."""
        slots = torch.arange(self.scores.shape[1], device=self.scores.device)
        cut = Ended(
            scores=self.scores,
            parents=slots.expand_as(self.scores),
            lengths=self.history.step.expand_as(self.scores),
        )
        merged = Ended(*(torch.cat(pair, 1) for pair in zip(self.ended, cut, strict=True)))
        finished = torch.arange(merged.scores.shape[1], device=slots.device) < self.beam.width
        lengths = merged.lengths.masked_fill(~merged.exists, -1)
        hypotheses = self.history.trace(
            merged.parents, lengths, finished.expand_as(lengths), merged.scores, self.pad
        )
        if self.met is not None:  # those that have ended have met all
            met = torch.cat([torch.ones_like(self.ended.exists), self.met], 1)
            hypotheses = replace(hypotheses, met=met)
        best = torch.arange(self.beam.nbest, device=slots.device).expand(len(lengths), -1)
        return hypotheses.best_first().at(best)

    def prefixes(self) -> Hypotheses:
        """Return `width` prefixes [groups, width]: ended ones, best first, then live ones."""
        return replace(self, beam=self.beam.all_candidates()).hypotheses()


def beam_search(
    model: Model[Any], state: Any, problems: Problems, beam: Beam, rank: Callable[[Tensor], Tensor]
) -> Hypotheses:
    """Run beam search.

    Args:
        model: the model, noisy or not.
        state: one row per problem.
        problems: what to solve.
        beam: width, finish rule and nbest.
        rank: maps the scores of children [groups, width, n], best first, to ranking scores.

    Returns:
        The hypotheses [groups, nbest], best first.
    """
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
