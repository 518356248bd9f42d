"""Count model calls, the cost of decoding. A model call is one row through one step.

The search loop and the re-scorer report their calls, so that counting does not change what runs.
All rows of a sentence count until the host sees that it is done; rows that only fill up a batch, so
that its shape is one of few, do not.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass


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
