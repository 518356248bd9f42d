"""Beam search: keep the `width` best prefixes (Cho, 2016, section 3.2), with three rules for those that end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from npad.errors import InvalidInput, one_of, whole
from npad.hypotheses import Found
from npad.model import Model
from npad.prediction import Prediction
from npad.rows import Problems, descending, rows_from
from npad.search.decoder import Decoder, run
from npad.search.history import History

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

    width: int = 5
    finish: Finish = "shrink"
    nbest: int = 1

    def __post_init__(self) -> None:
        whole("width", self.width, 1)
        one_of("finish", self.finish, tuple(RULES))
        whole("nbest", self.nbest, 1)
        if self.nbest > self.width:
            raise InvalidInput(f"nbest must be at most the width, {self.width}, not {self.nbest}")

    @property
    def rows(self) -> int:
        return self.width

    def all_candidates(self) -> Beam:
        return replace(self, nbest=self.width)

    def search(self, model: Model[Any], state: Any, problems: Problems) -> Found:
        return beam_search(model, state, problems, self, as_they_are)


def as_they_are(children: Tensor) -> Tensor:
    """Children chosen by their own scores."""
    return children


class Candidates(NamedTuple):
    """Extensions of the beam, best rank first: each [groups, n]."""

    scores: Tensor  # −inf where there is none
    parents: Tensor
    tokens: Tensor
    ends: Tensor
    clean: Tensor  # the scores by the clean model

    def at(self, index: Tensor) -> Candidates:
        return Candidates(*(x.gather(1, index) for x in self))


class Ended(NamedTuple):
    """The finished hypotheses, best first: each [groups, width]."""

    scores: Tensor  # −inf where there is none
    parents: Tensor  # the slot it ended from
    lengths: Tensor  # without the end symbol
    clean: Tensor  # the scores by the clean model

    def with_(self, more: Ended) -> Ended:
        """The best of these and some more."""
        together = [torch.cat(pair, 1) for pair in zip(self, more, strict=True)]
        best = descending(together[0])[:, : self.scores.shape[1]]
        return Ended(*(x.gather(1, best) for x in together))


# A rule takes the ended ones, the candidates and the width, and says which of the ended stay [groups, width], which
# candidates join them and which live on [groups, n].
Rule = Callable[[Ended, Candidates, int], tuple[Tensor, Tensor, Tensor]]


def shrink(ended: Ended, candidates: Candidates, width: int) -> tuple[Tensor, Tensor, Tensor]:
    """Each finished hypothesis narrows the beam by one (finish="shrink", the paper's rule)."""
    places = width - (ended.scores > -torch.inf).sum(1, keepdim=True)
    taken = _rank(candidates) < places
    return ended.scores > -torch.inf, taken & candidates.ends, taken & ~candidates.ends


def compete(ended: Ended, candidates: Candidates, width: int) -> tuple[Tensor, Tensor, Tensor]:
    """Finished hypotheses keep a slot while they are among the best `width` (finish="compete")."""
    everyone = torch.cat([ended.scores, candidates.scores], 1)
    best = descending(everyone)[:, :width]
    taken = torch.zeros_like(everyone, dtype=torch.bool).scatter(1, best, True)
    stay, taken = taken[:, :width], taken[:, width:]
    return stay, taken & candidates.ends, taken & ~candidates.ends


def pool(ended: Ended, candidates: Candidates, width: int) -> tuple[Tensor, Tensor, Tensor]:
    """Finished hypotheses move to a pool of their own; `width` stay alive (finish="pool")."""
    joins = candidates.ends & (_rank(candidates) < width)
    return ended.scores > -torch.inf, joins, ~candidates.ends


def _rank(candidates: Candidates) -> Tensor:
    return torch.arange(candidates.scores.shape[1], device=candidates.scores.device)


RULES: dict[str, Rule] = {"shrink": shrink, "compete": compete, "pool": pool}


@dataclass(frozen=True)
class BeamFrontier:
    """The live prefixes of each group, best first, and those that ended. An unused slot repeats the first, at −inf."""

    how: Beam
    rank: Callable[[Tensor], Tensor]  # children [groups, width, n], each row's best first -> what to choose them by
    eos: int
    pad: int
    tokens: Tensor  # [groups, width], or [groups, 1] before the first step
    scores: Tensor  # [groups, width]
    clean: Tensor  # [groups, width], the scores by the clean model
    ended: Ended
    history: History
    broken: Tensor  # [], whether a live row was no distribution

    @property
    def live(self) -> Tensor:
        return self.scores > -torch.inf

    def advance(self, predicted: Prediction, clean: Prediction) -> tuple[BeamFrontier, Tensor]:
        candidates = self._candidates(predicted, clean)
        stay, join, live = RULES[self.how.finish](self.ended, candidates, self.how.width)

        ended = self.ended._replace(scores=self.ended.scores.masked_fill(~stay, -torch.inf)).with_(
            Ended(
                candidates.scores.masked_fill(~join, -torch.inf),
                candidates.parents,
                self.history.step.expand_as(candidates.parents),
                candidates.clean,
            )
        )
        alive = candidates.scores.masked_fill(~live, -torch.inf)
        order = descending(alive)[:, : self.how.width]
        scores = alive.gather(1, order)
        _, parents, tokens, _, truly = candidates.at(torch.where(scores > -torch.inf, order, order[:, :1]))

        history = self.history.append(tokens, parents)
        broken = self.broken | ((predicted.norm + clean.norm).isnan() & self.live).any()
        after = replace(self, tokens=tokens, scores=scores, clean=truly, ended=ended, history=history, broken=broken)
        return after, rows_from(parents, self.tokens.shape[1])

    def _candidates(self, predicted: Prediction, clean: Prediction) -> Candidates:
        """The best extensions of [groups, width] prefixes, enough of them for any rule: twice the width.

        Of one parent, one more than the width is enough: as many that live on, and its end. They are ordered by their
        own probability, of equals the first symbol first, as greedy search takes it: sums would round it away.
        """
        own, symbols = predicted.top(min(self.how.width + 1, predicted.logits.shape[-1]))
        first = predicted.best()[..., None]
        symbols = torch.where(symbols == first, symbols[..., :1], symbols)
        symbols = torch.cat([first, symbols[..., 1:]], -1)
        children = (self.scores[..., None] + own).masked_fill(~self.live[..., None], -torch.inf)  # NaN there or not
        truly = children if clean is predicted else self.clean[..., None] + clean.at(symbols)
        chosen = descending(self.rank(children).flatten(1))[:, : 2 * self.how.width]
        scores, tokens, judged = (x.flatten(1).gather(1, chosen) for x in (children, symbols, truly))
        found = Candidates(scores, chosen // children.shape[-1], tokens, tokens == self.eos, judged)
        missing = max(0, self.how.width - scores.shape[1])
        return Candidates(
            F.pad(found.scores, (0, missing), value=-torch.inf), *(F.pad(x, (0, missing)) for x in found[1:])
        )

    def done(self) -> Tensor:
        return self.ended.scores[:, self.how.nbest - 1] >= self.scores[:, 0]

    def groups(self, index: Tensor) -> BeamFrontier:
        return replace(
            self,
            tokens=self.tokens[index],
            scores=self.scores[index],
            clean=self.clean[index],
            ended=Ended(*(x[index] for x in self.ended)),
            history=self.history.groups(index),
        )

    def found(self) -> Found:
        """The best that ended, then the best that were cut short."""
        here = torch.arange(self.scores.shape[1], device=self.scores.device).expand_as(self.scores)
        now = self.history.step.expand_as(self.scores)
        mine = Ended(self.scores, here, now, self.clean)
        scores, slots, lengths, clean = (torch.cat(pair, 1) for pair in zip(self.ended, mine, strict=True))
        finished = torch.arange(scores.shape[1], device=scores.device).expand_as(scores) < self.how.width
        lengths = lengths.masked_fill(scores == -torch.inf, -1)
        tokens = self.history.trace(slots, lengths, self.pad)
        ordered = Found(tokens, lengths, finished, scores, clean=clean).best_first()
        return ordered.at(torch.arange(self.how.nbest, device=here.device).expand(len(scores), -1))


def beam_search(
    model: Model[Any], state: Any, problems: Problems, how: Beam, rank: Callable[[Tensor], Tensor]
) -> Found:
    """Search with a beam whose candidates are chosen by `rank`, and return them by clean log-probability."""
    special, groups, device = model.special, len(problems), problems.ids.device
    nothing = torch.full((groups, how.width), -torch.inf, device=device)
    zero = torch.zeros_like(nothing, dtype=torch.long)
    frontier = BeamFrontier(
        how=how,
        rank=rank,
        eos=special.eos,
        pad=special.pad,
        tokens=torch.full((groups, 1), special.bos, device=device),
        scores=torch.zeros(groups, 1, device=device),
        clean=torch.zeros(groups, 1, device=device),
        ended=Ended(nothing, zero, zero, nothing),
        history=History.empty(groups, how.width, problems.max_length, special.pad, device),
        broken=torch.zeros((), dtype=torch.bool, device=device),
    )
    return run(model, state, frontier, problems, rows=how.width)
