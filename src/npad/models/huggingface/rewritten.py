"""What the models that rewrite scores share: their states, and the judge of their hypotheses."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from npad.model import Capabilities, Wrapper, name_of, reserve
from npad.models.clean import Clean, WrappingState


@dataclass(frozen=True)
class RewrittenState(WrappingState):
    """The state of the wrapped model."""

    started: bool  # whether the begin token has been read


class Rewritten(Wrapper[Any]):
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
            modified_scores=True,
            start_search=None if inner.start_search is None else self.start_search,
            reserve=None if inner.reserve is None else self.reserve,
        )

    def start(self, source: Any) -> Any:
        return self.wrap(self.model.start(source), source)

    def start_search(self, source: Any) -> Any:
        """Start a search that reserves what it needs."""
        start = Capabilities.of(self.model).start_search
        assert start is not None
        return self.wrap(start(source), source)

    def wrap(self, inner: Any, source: Any) -> RewrittenState:
        """Return the state that wraps the model's state of a source."""
        return RewrittenState(inner, started=False)

    def in_precision(self, precision: str) -> Rewritten:
        """Return this model around a copy in another precision, for chains that are re-scored."""
        low = copy.copy(self)
        low.model = self.model.in_precision(precision)
        return low

    def reserve(self, state: RewrittenState, steps: int) -> RewrittenState:
        """Return a state with room for `steps` steps since the start."""
        return replace(state, inner=reserve(self.model, state.inner, steps))

    def select(self, state: Any, rows: Tensor) -> Any:
        return replace(state, inner=self.model.select(state.inner, rows))
