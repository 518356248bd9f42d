"""What the models that steer a search share: their states, and the judge of their hypotheses."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from npad.model import Capabilities, Perturb, Wrapper, name_of, reserve


@dataclass(frozen=True)
class SteeredState:
    """The state of the wrapped model."""

    inner: Any
    started: bool  # whether the begin token has been read


class Steered(Wrapper[Any]):
    """A model whose `step` returns changed scores. Hypotheses get those of the wrapped model."""

    def __init__(self, model: Any) -> None:
        self.model: Any = model
        self.name = name_of(model)

    @property
    def capabilities(self) -> Capabilities:
        inner = Capabilities.of(self.model)
        return replace(
            super().capabilities,
            judge=Clean(self.model),
            steered=True,
            start_search=None if inner.start_search is None else self.start_search,
            reserve=None if inner.reserve is None else self.reserve,
        )

    def start(self, source: Any) -> Any:
        return self.steer(self.model.start(source), source)

    def start_search(self, source: Any) -> Any:
        """Start a search that reserves what it needs."""
        start = Capabilities.of(self.model).start_search
        assert start is not None
        return self.steer(start(source), source)

    def steer(self, inner: Any, source: Any) -> SteeredState:
        """Return the state that wraps the model's state of a source."""
        return SteeredState(inner, started=False)

    def in_precision(self, precision: str) -> Steered:
        """Return this model around a copy in another precision, for chains that are re-scored."""
        low = copy.copy(self)
        low.model = self.model.in_precision(precision)
        return low

    def reserve(self, state: SteeredState, steps: int) -> SteeredState:
        """Return a state with room for `steps` steps since the start."""
        return replace(state, inner=reserve(self.model, state.inner, steps))

    def select(self, state: Any, rows: Tensor) -> Any:
        return replace(state, inner=self.model.select(state.inner, rows))


@dataclass(frozen=True)
class Clean(Wrapper[Any]):
    """The judge of a steered model: the wrapped model, started from the wrapper's states."""

    model: Any

    @property
    def name(self) -> str:
        return name_of(self.model)

    @property
    def capabilities(self) -> Capabilities:
        inner = Capabilities.of(self.model)
        return replace(super().capabilities, forced=inner.forced, capturable=inner.capturable)

    def start(self, source: Any) -> Any:
        return self.model.start(source)

    def step(
        self, state: Any, tokens: Tensor, perturb: Perturb | None = None
    ) -> tuple[Tensor, Any]:
        return self.model.step(state, tokens, perturb)  # type: ignore[no-any-return]

    def select(self, state: Any, rows: Tensor) -> Any:
        return self.model.select(state.inner if isinstance(state, SteeredState) else state, rows)
