"""A deadline for a search, and a way to stop it, which it checks after every window of steps."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_deadline: ContextVar[float | None] = ContextVar("deadline", default=None)
_condition: ContextVar[Callable[[], bool] | None] = ContextVar("condition", default=None)


class DeadlinePassed(Exception):
    """The deadline of a search has passed."""


class Stopped(Exception):
    """A search was stopped: nobody waits for its result."""


@contextmanager
def deadline_at(moment: float) -> Iterator[None]:
    """Let searches inside the block end with `DeadlinePassed` after a moment of `monotonic`."""
    token = _deadline.set(moment)
    try:
        yield
    finally:
        _deadline.reset(token)


@contextmanager
def stopped_by(condition: Callable[[], bool]) -> Iterator[None]:
    """Let searches inside the block end with `Stopped` once a condition holds."""
    token = _condition.set(condition)
    try:
        yield
    finally:
        _condition.reset(token)


def check_deadline() -> None:
    """Raise `DeadlinePassed` or `Stopped` if the deadline has passed or the condition holds."""
    moment, condition = _deadline.get(), _condition.get()
    if condition is not None and condition():
        raise Stopped
    if moment is not None and time.monotonic() >= moment:
        raise DeadlinePassed
