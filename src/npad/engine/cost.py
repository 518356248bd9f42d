"""How much a decoder asks of a model."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from torch import Tensor

from npad.model import Model, Perturb, State, Wrapper, ensure_model, name_of, optional


class Counted(Wrapper[State]):
    """A model that counts model calls: rows through one decoder step.

    `calls` are those of the search, `rescored` those of the clean judge. A row counts whether or not it was still
    needed: it is what the machine did.
    """

    def __init__(self, model: Model[State]) -> None:
        ensure_model(model)
        self.model = model
        self.own = 0
        self.low: Counted[Any] | None = None
        if optional(model, "attention"):
            self.attention = optional(model, "attention")
        if optional(model, "forced"):
            self.forced = self._forced
        if optional(model, "likelihood"):
            self.likelihood = self._likelihood
        if optional(model, "hasty"):
            self.hasty = self._hasty

    @property
    def calls(self) -> int:
        return self.own + (self.low.calls if self.low else 0)

    @cached_property
    def judge(self) -> Counted[State]:
        return Counted(getattr(self.model, "judge", self.model))

    @property
    def rescored(self) -> int:
        return self.judge.calls

    @property
    def name(self) -> str:
        return name_of(self.model)

    def start(self, source: Any) -> State:
        return self.model.start(source)

    def step(self, state: State, tokens: Tensor, perturb: Perturb | None = None) -> tuple[Tensor, State]:
        self.own += len(tokens)
        return self.model.step(state, tokens, perturb)

    def select(self, state: State, rows: Tensor) -> State:
        return self.model.select(state, rows)

    def _forced(self, state: State, tokens: Tensor) -> Tensor:
        self.own += tokens.numel()
        return self.model.forced(state, tokens)  # type: ignore[attr-defined, no-any-return]

    def _likelihood(self, state: State, tokens: Tensor, targets: Tensor, reads: Tensor) -> tuple[Tensor, int]:
        scored, calls = self.model.likelihood(state, tokens, targets, reads)  # type: ignore[attr-defined]
        self.own += calls
        return scored, calls

    def _hasty(self, state: State) -> tuple[Counted[Any], Any]:
        model, low = self.model.hasty(state)  # type: ignore[attr-defined]
        self.low = self.low or Counted(model)
        return self.low, low
