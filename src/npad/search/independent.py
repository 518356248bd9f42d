"""Search with independent rows, each extended by one token per step: greedy and sampling."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from npad.engine.next_token import Prediction
from npad.hypotheses import Hypotheses
from npad.model import Model
from npad.rows import Problems, repeat
from npad.search.history import History
from npad.search.loop import run


class Choice(Protocol):
    """A rule that chooses the next token of each row."""

    def __call__(self, log_probs: Tensor, step: Tensor) -> Tensor:
        """Return tokens [groups, width] of log_probs [groups, width, V]; step [1] counts from 1."""

    def groups(self, index: Tensor) -> Choice:
        """Return the choice for the given groups alone."""


@dataclass(frozen=True)
class IndependentRows:
    """A frontier of independent rows. The first step is taken once for all rows of a group."""

    choice: Choice | None  # None: the most probable token
    width: int
    eos: int
    pad: int
    tokens: Tensor  # [groups, width], or [groups, 1] before the first step
    scores: Tensor  # [groups, width]
    lengths: Tensor  # [groups, width], without the end token
    finished: Tensor  # [groups, width]
    history: History

    @property
    def broken(self) -> Tensor:
        return self.scores.isnan().any()  # NaN stays NaN

    def advance(self, predicted: Prediction) -> tuple[IndependentRows, Tensor | None]:
        groups, width = self.tokens.shape
        by_kernel = predicted.first is not None and predicted.listed is None
        if self.choice is None and width == self.width and by_kernel:
            return self._greedy_by_kernel(predicted), None
        predicted = predicted.expand(groups, self.width)
        if self.choice is None:
            tokens, gained = predicted.greedy()
        else:
            tokens = self.choice(predicted.dense(), self.history.step + 1)
            gained = predicted.at(tokens[..., None]).squeeze(-1)
        tokens = tokens.masked_fill(self.finished, self.eos)
        ends = tokens == self.eos  # those that were finished have it as well
        advanced = IndependentRows(
            self.choice,
            self.width,
            self.eos,
            self.pad,
            tokens,
            scores=self.scores + gained.masked_fill(self.finished, 0),
            lengths=self.lengths + ~ends,
            finished=ends,
            history=self.history.append(tokens),
        )
        first_step = width != self.width
        return advanced, repeat(groups, self.width, tokens.device) if first_step else None

    def _greedy_by_kernel(self, predicted: Prediction) -> IndependentRows:
        """Advance by the most probable tokens, `predicted.first`, in one kernel."""
        from npad.kernels.tokens import greedy_step

        assert predicted.first is not None
        history = self.history
        tokens, scores, lengths, finished, step = greedy_step(
            predicted.first,
            predicted.logits,
            predicted.norm,
            self.scores,
            self.lengths,
            self.finished,
            history.tokens,
            history.step,
            self.eos,
        )
        return replace(
            self,
            tokens=tokens,
            scores=scores,
            lengths=lengths,
            finished=finished,
            history=replace(history, step=step),
        )

    def done(self) -> Tensor:
        return self.finished.all(1)

    def groups(self, index: Tensor) -> IndependentRows:
        return replace(
            self,
            choice=None if self.choice is None else self.choice.groups(index),
            tokens=self.tokens[index],
            scores=self.scores[index],
            lengths=self.lengths[index],
            finished=self.finished[index],
            history=self.history.groups(index),
        )

    def hypotheses(self) -> Hypotheses:
        return self.prefixes().best_first()

    def prefixes(self) -> Hypotheses:
        """Return all rows [groups, width], finished or not, each in its slot."""
        slots = torch.arange(self.width, device=self.lengths.device).expand_as(self.lengths)
        return self.history.trace(slots, self.lengths, self.finished, self.scores, self.pad)


def walk(
    model: Model[Any], state: Any, problems: Problems, choice: Choice | None, width: int
) -> Hypotheses:
    """Extend `width` independent rows per problem until all have ended or reach max_length.

    Args:
        model: the model, noisy or not.
        state: one row per problem.
        problems: what to solve.
        choice: chooses the next tokens; None takes the most probable.
        width: rows per problem.

    Returns:
        The hypotheses [groups, width], best first.
    """
    special, groups, device = model.special, len(problems), problems.ids.device
    frontier = IndependentRows(
        choice=choice,
        width=width,
        eos=special.eos,
        pad=special.pad,
        tokens=torch.full((groups, 1), special.bos, device=device),
        scores=torch.zeros(groups, width, device=device),
        lengths=torch.zeros(groups, width, dtype=torch.long, device=device),
        finished=torch.zeros(groups, width, dtype=torch.bool, device=device),
        history=History.empty(
            groups, width, problems.max_length, special.pad, device, independent=True
        ),
    )
    return run(model, state, frontier, problems, rows=width)
