"""The clean judge of a model that wraps another one and its states."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from npad.model import Capabilities, Perturb, Wrapper, name_of


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

    def start(self, source: Any) -> Any:
        return self.model.start(source)

    def step(
        self, state: Any, tokens: Tensor, perturb: Perturb | None = None
    ) -> tuple[Tensor, Any]:
        return self.model.step(state, tokens, perturb)  # type: ignore[no-any-return]

    def select(self, state: Any, rows: Tensor) -> Any:
        return self.model.select(state.inner if isinstance(state, WrappingState) else state, rows)
