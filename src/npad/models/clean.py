"""Wrappers whose hypotheses get the scores of the wrapped model: what they share, and the judge."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from npad.model import Capabilities, Wrapper, name_of, reserve


@dataclass(frozen=True)
class WrappingState:
    """A state that holds the wrapped model's state."""

    inner: Any


@dataclass(frozen=True)
class Clean(Wrapper[Any]):
    """The wrapped model as a judge, which re-scores from the wrapper's states.

    `select` comes before all other calls and unwraps, so that the wrapped model's own ways to
    re-score take the result.
    """

    model: Any

    @property
    def name(self) -> str:
        return name_of(self.model)

    @property
    def capabilities(self) -> Capabilities:
        inner = Capabilities.of(self.model)
        return replace(
            super().capabilities,
            forced=inner.forced,
            prefix_reader=inner.prefix_reader,
            attention=inner.attention,
            capturable=inner.capturable,
        )

    def select(self, state: Any, rows: Tensor) -> Any:
        return self.model.select(state.inner if isinstance(state, WrappingState) else state, rows)


class Judged(Wrapper[Any]):
    """A model whose `step` returns changed scores. Hypotheses get those of the wrapped model."""

    def capabilities_over(self, inner: Capabilities) -> Capabilities:
        return replace(
            super().capabilities_over(inner),
            judge=Clean(self.model if inner.judge is None else inner.judge),
            modified_scores=True,
            capturable=inner.capturable,
            start_search=None if inner.start_search is None else self.start_search,
            reserve=None if inner.reserve is None else self.reserve,
        )

    @abstractmethod
    def wrapped(self, inner: Any, source: Any) -> Any:
        """Return the state of this model that wraps the inner model's state of a source."""

    def start(self, source: Any) -> Any:
        return self.wrapped(self.model.start(source), source)

    def start_search(self, source: Any) -> Any:
        """Start a search that reserves what it needs."""
        start = Capabilities.of(self.model).start_search
        assert start is not None
        return self.wrapped(start(source), source)

    def reserve(self, state: Any, steps: int) -> Any:
        """Return a state with room for `steps` steps since the start."""
        return replace(state, inner=reserve(self.model, state.inner, steps))
