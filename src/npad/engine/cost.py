"""Count model calls, the cost of decoding. A model call is one row through one step.

The search loop and the re-scorer report their calls, so that counting does not change what runs.
Every row counts, including rows that had already finished.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from npad.model import Capabilities, Model, State, Wrapper, ensure_model, name_of


@dataclass
class ModelCalls:
    """Model calls of searches, and of re-scoring."""

    search: int = 0
    rescoring: int = 0


_counters: ContextVar[tuple[ModelCalls, ...]] = ContextVar("counters", default=())


@contextmanager
def count_calls(calls: ModelCalls | None = None) -> Iterator[ModelCalls]:
    """Count the model calls that are made inside a `with` block.

    Args:
        calls: the counter to add to; a new one by default.
    """
    calls = ModelCalls() if calls is None else calls
    token = _counters.set((*_counters.get(), calls))
    try:
        yield calls
    finally:
        _counters.reset(token)


def add_calls(search: int = 0, rescoring: int = 0) -> None:
    """Add model calls to all active counters."""
    for calls in _counters.get():
        calls.search += search
        calls.rescoring += rescoring


class Counted(Wrapper[State]):
    """A model that counts its calls in `decode` and `score`. Deprecated: use `count_calls`.

    `calls` counts model calls of searches, `rescored` those of re-scoring.
    """

    def __init__(self, model: Model[State]) -> None:
        ensure_model(model)
        self.model = model
        self.counter = ModelCalls()

    @property
    def calls(self) -> int:
        return self.counter.search

    @property
    def rescored(self) -> int:
        return self.counter.rescoring

    @property
    def name(self) -> str:
        return name_of(self.model)

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities.of(self.model)


def counting(model: Any) -> AbstractContextManager[Any]:
    """Count the calls inside the block if the model is `Counted`; otherwise do nothing."""
    return count_calls(model.counter) if isinstance(model, Counted) else nullcontext()
