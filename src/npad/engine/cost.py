"""The cost of decoding: model calls, milliseconds per sentence, sentences per second.

A model call is one row through one step. Calls do not depend on the machine; which of two decoders
is faster does, and on how many sentences are decoded at a time.

The search loop and the re-scorer report their calls, so that counting does not change what runs.
All rows of a sentence count until the host sees that it is done; rows that only fill up a batch, so
that its shape is one of few, do not.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Literal, TypeVar

import torch

Unit = Literal["calls", "milliseconds"]  # of a cost per sentence
T = TypeVar("T")
SHORT_UNITS: dict[Unit, str] = {"calls": "calls", "milliseconds": "ms"}


@dataclass
class ModelCalls:
    """Model calls of searches, and of re-scoring."""

    search: int = 0
    rescoring: int = 0


@contextmanager
def setting(variable: ContextVar[T], value: T) -> Iterator[None]:
    """Set a variable of the context inside the block."""
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


_counters: ContextVar[tuple[ModelCalls, ...]] = ContextVar("counters", default=())


@contextmanager
def count_calls(calls: ModelCalls | None = None) -> Iterator[ModelCalls]:
    """Count the model calls that are made inside a `with` block.

    Args:
        calls: the counter to add to; a new one by default.
    """
    calls = ModelCalls() if calls is None else calls
    with setting(_counters, (*_counters.get(), calls)):
        yield calls


def add_calls(search: int = 0, rescoring: int = 0) -> None:
    """Add model calls to all active counters."""
    for calls in _counters.get():
        calls.search += search
        calls.rescoring += rescoring


@dataclass(frozen=True)
class Timing:
    """The time of a decoder, measured in rounds in which several decoders take turns.

    Attributes:
        seconds: per sentence, of each round.
        batch: sentences decoded at a time.
        sentences: of each round.
        machine: where it was measured; times of different machines cannot be compared.
    """

    seconds: tuple[float, ...]
    batch: int
    sentences: int
    machine: str

    @property
    def milliseconds(self) -> float:
        """Milliseconds per sentence: the median of the rounds."""
        return 1000 * statistics.median(self.seconds)

    @property
    def spread(self) -> tuple[float, float]:
        """Milliseconds per sentence of the fastest and the slowest round."""
        return 1000 * min(self.seconds), 1000 * max(self.seconds)

    @property
    def per_second(self) -> float:
        """Sentences per second: the median of the rounds."""
        return 1 / statistics.median(self.seconds)


_clock: ContextVar[Callable[[], float]] = ContextVar("clock", default=time.perf_counter)


def clocked_by(clock: Callable[[], float]) -> AbstractContextManager[None]:
    """Take times inside the block from a clock, such as `time.process_time`."""
    return setting(_clock, clock)


def now(device: torch.device) -> float:
    """Return the clock's seconds, once a GPU has finished its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return _clock.get()()
