"""A deadline for a search, and a way to stop it, which it checks after every window of steps."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from contextvars import ContextVar

from npad.engine.cost import setting

_deadline: ContextVar[float | None] = ContextVar("deadline", default=None)
_condition: ContextVar[Callable[[], bool] | None] = ContextVar("condition", default=None)


class DeadlinePassed(Exception):
    """The deadline of a search has passed."""


class Stopped(Exception):
    """A search was stopped: nobody waits for its result."""


def deadline_at(moment: float) -> AbstractContextManager[None]:
    """Let searches inside the block end with `DeadlinePassed` after a moment of `monotonic`."""
    return setting(_deadline, moment)


def stopped_by(condition: Callable[[], bool]) -> AbstractContextManager[None]:
    """Let searches inside the block end with `Stopped` once a condition holds."""
    return setting(_condition, condition)


def check_deadline() -> None:
    """Raise `DeadlinePassed` or `Stopped` if the deadline has passed or the condition holds."""
    moment, condition = _deadline.get(), _condition.get()
    if condition is not None and condition():
        raise Stopped
    if moment is not None and time.monotonic() >= moment:
        raise DeadlinePassed
