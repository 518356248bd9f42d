"""Progress of decoding, batch by batch: how many texts have been decoded so far."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

Listener = Callable[[int], None]

_listeners: ContextVar[tuple[Listener, ...]] = ContextVar("listeners", default=())


@contextmanager
def on_decoded(listener: Listener) -> Iterator[None]:
    """Call `listener` with the size of every batch that a translator decodes inside the block.

    Blank texts and those that are too long are in no batch. On a GPU, the thread that decodes makes
    the call.
    """
    token = _listeners.set((*_listeners.get(), listener))
    try:
        yield
    finally:
        _listeners.reset(token)


def report_decoded(texts: int) -> None:
    """Tell all active listeners that a batch of so many texts has been decoded."""
    for listener in _listeners.get():
        listener(texts)
