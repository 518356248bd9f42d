"""One hypothesis a row, extended by one chosen symbol at a time: what greedy search and sampling share."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from npad.engine.next_token import Prediction
from npad.model import Model
from npad.search.decoder import run
from npad.search.history import History
from npad.search.hypotheses import Found
from npad.search.rows import Problems, repeat


class Choice(Protocol):
    """How the next symbol is chosen."""

    def __call__(self, log_probs: Tensor, step: Tensor) -> Tensor:
        """[groups, width, V] -> [groups, width]; step [1] counts from 1."""

    def groups(self, index: Tensor) -> Choice: ...


@dataclass(frozen=True)
class Walk:
    """A frontier of independent rows. The first step is taken once for the `width` rows of a group."""

    choice: Choice | None  # None: the most probable symbol
    width: int
    eos: int
    pad: int
    tokens: Tensor  # [groups, width], or [groups, 1] before the first step
    scores: Tensor  # [groups, width]
    clean: Tensor  # [groups, width], the scores by the clean model
    lengths: Tensor  # [groups, width], without the end symbol
    finished: Tensor  # [groups, width]
    history: History

    @property
    def broken(self) -> Tensor:
        return (self.scores + self.clean).isnan().any()  # NaN stays NaN

    def advance(self, predicted: Prediction, clean: Prediction) -> tuple[Walk, Tensor | None]:
        groups, width = self.tokens.shape
        if self.choice is None and width == self.width and predicted.first is not None:
            return self._walked(predicted.first, predicted, clean), None
        one, other = (each.expand(groups, self.width) for each in (predicted, clean))
        chosen = one.best() if self.choice is None else self.choice(one.dense(), self.history.step + 1)
        chosen = chosen.masked_fill(self.finished, self.eos)
        gained = one.at(chosen[..., None]).squeeze(-1)
        truly = gained if clean is predicted else other.at(chosen[..., None]).squeeze(-1)
        ends = chosen == self.eos
        after = replace(
            self,
            tokens=chosen,
            scores=self.scores + gained.masked_fill(self.finished, 0),
            clean=self.clean + truly.masked_fill(self.finished, 0),
            lengths=self.lengths + ~(self.finished | ends),
            finished=self.finished | ends,
            history=self.history.append(chosen),
        )
        return after, repeat(groups, self.width, chosen.device) if width != self.width else None

    def _walked(self, first: Tensor, predicted: Prediction, clean: Prediction) -> Walk:
        """The same in one kernel, where a kernel has found the most probable symbols."""
        from npad.kernels.walk import walked

        known, truly = ((each.logits, each.norm) for each in (predicted, clean))
        now = self.scores, self.clean, self.lengths, self.finished
        symbols, after, step = walked(first, known, truly, now, self.history.tokens, self.history.step, self.eos)
        scores, judged, lengths, finished = after
        history = replace(self.history, step=step)
        return replace(
            self, tokens=symbols, scores=scores, clean=judged, lengths=lengths, finished=finished, history=history
        )

    def done(self) -> Tensor:
        return self.finished.all(1)

    def groups(self, index: Tensor) -> Walk:
        per_group = {name: getattr(self, name)[index] for name in ("tokens", "scores", "clean", "lengths", "finished")}
        choice = None if self.choice is None else self.choice.groups(index)
        return replace(self, choice=choice, history=self.history.groups(index), **per_group)

    def found(self) -> Found:
        tokens = self.history.straight(self.lengths, self.pad)
        return Found(tokens, self.lengths, self.finished, self.scores, clean=self.clean).best_first()


def walk(model: Model[Any], state: Any, problems: Problems, choice: Choice | None, width: int) -> Found:
    """Run `width` walks for each problem; without a choice, along the most probable symbols."""
    special, groups, device = model.special, len(problems), problems.ids.device
    frontier = Walk(
        choice=choice,
        width=width,
        eos=special.eos,
        pad=special.pad,
        tokens=torch.full((groups, 1), special.bos, device=device),
        scores=torch.zeros(groups, width, device=device),
        clean=torch.zeros(groups, width, device=device),
        lengths=torch.zeros(groups, width, dtype=torch.long, device=device),
        finished=torch.zeros(groups, width, dtype=torch.bool, device=device),
        history=History.empty(groups, width, problems.max_length, special.pad, device, straight=True),
    )
    return run(model, state, frontier, problems, rows=width)
