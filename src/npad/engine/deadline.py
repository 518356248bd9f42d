"""A deadline for a search, which it checks after every window of steps."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_deadline: ContextVar[float | None] = ContextVar("deadline", default=None)


class DeadlinePassed(Exception):
    """The deadline of a search has passed."""


@contextmanager
def deadline_at(moment: float) -> Iterator[None]:
    """Let searches inside the block end with `DeadlinePassed` after a moment of `monotonic`."""
    token = _deadline.set(moment)
    try:
        yield
    finally:
        _deadline.reset(token)


def check_deadline() -> None:
    """Raise `DeadlinePassed` if there is a deadline and it has passed."""
    moment = _deadline.get()
    if moment is not None and time.monotonic() >= moment:
        raise DeadlinePassed
