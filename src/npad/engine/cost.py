"""Model calls: what a decoder asks of a model. A model call is one row through one step.

The loop and the re-scorer report what they do, so that counting never changes what is counted.
A row counts whether or not it was still needed: it is what the machine did.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from npad.model import Capabilities, Model, Perturb, State, Wrapper, ensure_model, name_of


@dataclass
class ModelCalls:
    """Rows through one step of the model: those of searches, and those of re-scoring."""

    search: int = 0
    rescoring: int = 0


_counters: ContextVar[tuple[ModelCalls, ...]] = ContextVar("counters", default=())


@contextmanager
def count_calls(calls: ModelCalls | None = None) -> Iterator[ModelCalls]:
    """Count the model calls made inside the block: `with count_calls() as calls: decode(…)`."""
    calls = ModelCalls() if calls is None else calls
    token = _counters.set((*_counters.get(), calls))
    try:
        yield calls
    finally:
        _counters.reset(token)


def add_calls(search: int = 0, rescoring: int = 0) -> None:
    """Report model calls to whoever counts."""
    for calls in _counters.get():
        calls.search += search
        calls.rescoring += rescoring


class Counted(Wrapper[State]):
    """A model that counts its calls when it is decoded or scored with.

    `calls` are those of searches, `rescored` those of re-scoring. Kept for one release: new code
    uses `count_calls`.
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

    def start(self, source: Any) -> State:
        return self.model.start(source)

    def step(
        self, state: State, tokens: Tensor, perturb: Perturb | None = None
    ) -> tuple[Tensor, State]:
        return self.model.step(state, tokens, perturb)

    def select(self, state: State, rows: Tensor) -> State:
        return self.model.select(state, rows)


def counting(model: Any) -> AbstractContextManager[Any]:
    """Count what is done inside the block for a `Counted` model; for others, nothing."""
    return count_calls(model.counter) if isinstance(model, Counted) else nullcontext()
