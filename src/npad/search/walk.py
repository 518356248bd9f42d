"""One hypothesis a row, extended by one chosen symbol at a time: what greedy search and sampling share."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from npad.hypotheses import Found
from npad.model import Model
from npad.rows import Problems, repeat
from npad.search.decoder import run
from npad.search.history import History


class Choice(Protocol):
    """How the next symbol is chosen."""

    def __call__(self, log_probs: Tensor, step: Tensor) -> Tensor:
        """[groups, width, V] -> [groups, width]; step [1] counts from 1."""

    def groups(self, index: Tensor) -> Choice: ...


@dataclass(frozen=True)
class Walk:
    """A frontier of independent rows. The first step is taken once for the `width` rows of a group."""

    choice: Choice
    width: int
    eos: int
    pad: int
    tokens: Tensor  # [groups, width], or [groups, 1] before the first step
    scores: Tensor  # [groups, width]
    lengths: Tensor  # [groups, width], without the end symbol
    finished: Tensor  # [groups, width]
    history: History

    @property
    def live(self) -> Tensor:
        return ~self.finished[:, : self.tokens.shape[1]]

    def advance(self, log_probs: Tensor) -> tuple[Walk, Tensor | None]:
        groups, width = self.tokens.shape
        log_probs = log_probs.expand(groups, self.width, -1)
        chosen = self.choice(log_probs, self.history.step + 1).masked_fill(self.finished, self.eos)
        gained = log_probs.gather(-1, chosen[..., None]).squeeze(-1)
        ends = chosen == self.eos
        after = replace(
            self,
            tokens=chosen,
            scores=self.scores + gained.masked_fill(self.finished, 0),
            lengths=self.lengths + ~(self.finished | ends),
            finished=self.finished | ends,
            history=self.history.append(chosen, torch.arange(self.width, device=chosen.device).expand_as(chosen)),
        )
        return after, repeat(groups, self.width, chosen.device) if width != self.width else None

    def done(self) -> Tensor:
        return self.finished.all(1)

    def groups(self, index: Tensor) -> Walk:
        per_group = {name: getattr(self, name)[index] for name in ("tokens", "scores", "lengths", "finished")}
        return replace(self, choice=self.choice.groups(index), history=self.history.groups(index), **per_group)

    def found(self) -> Found:
        slots = torch.arange(self.width, device=self.tokens.device).expand_as(self.lengths)
        tokens = self.history.trace(slots, self.lengths, self.pad)
        return Found(tokens, self.lengths, self.finished, self.scores).best_first()


def walk(model: Model[Any], state: Any, problems: Problems, choice: Choice, width: int) -> Found:
    """Run `width` walks for each problem."""
    special, groups, device = model.special, len(problems), problems.ids.device
    frontier = Walk(
        choice=choice,
        width=width,
        eos=special.eos,
        pad=special.pad,
        tokens=torch.full((groups, 1), special.bos, device=device),
        scores=torch.zeros(groups, width, device=device),
        lengths=torch.zeros(groups, width, dtype=torch.long, device=device),
        finished=torch.zeros(groups, width, dtype=torch.bool, device=device),
        history=History.empty(groups, width, problems.max_length, special.pad, device),
    )
    return run(model, state, frontier, problems, rows=width)
