"""`Steered` wraps a model and pushes its state by an actor at every step; decoders need not know.

Greedy search over it costs one row per step, as greedy search does, and the clean model judges what
it finds.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from npad.engine.pytree import tree_map
from npad.errors import InvalidInput
from npad.model import Capabilities, Perturb, ensure_model, name_of
from npad.models.actors import Actor, ActorState, Push
from npad.models.clean import Judged, WrappingState
from npad.validation import brief


@dataclass(frozen=True)
class SteeredState(WrappingState):
    """The model's state and what the actor remembers, one row per hypothesis."""

    actor: ActorState
    pushed: Tensor | None = None  # [rows], whether the actor pushes the row; None: all rows


class Steered(Judged):
    """A model whose `step` pushes the state by an actor. Hypotheses get the clean model's scores.

    Noise goes on top of the push: `NPAD(Greedy())` over a steered model perturbs what the actor
    returns. Chains run in the model's own precision.

    Args:
        model: the model to steer.
        actor: an actor for it.

    Raises:
        InvalidInput: the actor is for another model.
    """

    def __init__(self, model: Any, actor: Actor) -> None:
        if isinstance(model, type) or not hasattr(model, "sites"):
            ensure_model(model)  # raises, naming what is missing
        if not isinstance(actor, Actor):
            raise InvalidInput(f"actor must be an Actor, not {brief(actor)}")
        actor.check(model)
        self.model: Any = model
        self.actor = actor
        self.name = f"Steered({name_of(model)})"

    def __eq__(self, other: object) -> bool:
        """Models with the same weights, in the same places, share their CUDA graphs."""
        return isinstance(other, Steered) and self._identity() == other._identity()

    def __hash__(self) -> int:
        return hash(self._identity())

    def _identity(self) -> tuple[Any, ...]:
        return self.model, self.actor, self.actor.weight.data_ptr()

    @property
    def capabilities(self) -> Capabilities:
        inner = Capabilities.of(self.model)
        widen = None if inner.widen is None else self.widen
        return replace(super().capabilities, widen=widen)

    def wrapped(self, inner: Any, source: Any) -> SteeredState:
        return self.attach(inner, len(source))

    def attach(self, state: Any, rows: int, pushed: Tensor | None = None) -> SteeredState:
        """Return a state of the model, before its first step, with what the actor remembers."""
        return SteeredState(state, self.actor.start(rows), pushed)

    def step(
        self, state: SteeredState, tokens: Tensor, perturb: Perturb | None = None
    ) -> tuple[Tensor, SteeredState]:
        push = Push(self.actor, list(state.actor), perturb, rows=state.pushed)
        logits, inner = self.model.step(state.inner, tokens, push)
        remembered: Any = tuple(push.state)
        return logits, SteeredState(inner, remembered, state.pushed)

    def select(self, state: SteeredState, rows: Tensor) -> SteeredState:
        return self._at(state, rows, self.model.select(state.inner, rows))

    def widen(self, state: SteeredState, rows: Tensor) -> SteeredState:
        """Return a state that ends in copies of its first sentence, whose rows are `rows`."""
        return self._at(state, rows, self.model.widen(state.inner, rows))

    def _at(self, state: SteeredState, rows: Tensor, inner: Any) -> SteeredState:
        remembered, pushed = tree_map(lambda x: x[rows], (state.actor, state.pushed))
        return SteeredState(inner, remembered, pushed)
