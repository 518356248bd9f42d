"""Decode in a background thread while the caller's thread reads, encodes and writes.

Only decoding leaves the caller's thread: there the user's iterator is read, and `encode` and
`detokenise` are called, as without overlap.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextvars import copy_context
from functools import partial
from threading import RLock, Thread, current_thread
from typing import Any, TypeVar

import torch

from npad.model import Capabilities, Model

T = TypeVar("T")


class ReadAhead:
    """Sources that can be read at any time without waiting for a producer, as a file's lines can.

    `Pipeline.stream` may read them one window ahead of what it yields.
    """

    def __init__(self, sources: Iterable[Any]) -> None:
        self.sources = sources

    def __iter__(self) -> Iterator[Any]:
        return iter(self.sources)


class Inline:
    """Runs a decoding task in the caller's thread, when its result is asked for."""

    def submit(self, task: Callable[[], T]) -> Callable[[], T]:
        """Return a function that waits for the task and returns its result, or raises its error."""
        return task

    def look_ahead(self, items: Iterator[T]) -> Iterator[T]:
        """Yield the items, computed ahead if that helps."""
        return items

    def close(self) -> None:
        """Drop the tasks that have not begun, and wait for the one that has."""


class Background(Inline):
    """Runs tasks in a thread, in the order in which they were submitted.

    The thread ends when no task is left, so that a program that abandons a stream can end. Tasks
    see the context variables of their submitter.

    Args:
        ahead: start the thread with the first task. Otherwise it starts with the second one, and a
            task that is alone runs in the thread that asks for its result: for one sentence, a
            thread takes longer than it saves.
    """

    def __init__(self, ahead: bool = True) -> None:
        self.ahead = ahead
        self._tasks: deque[tuple[Callable[[], Any], Future[Any]]] = deque()
        self._lock = RLock()  # the garbage collector may call `close` wherever the lock is held
        self._running = False
        self._thread: Thread | None = None

    def submit(self, task: Callable[[], T]) -> Callable[[], T]:
        future: Future[T] = Future()
        with self._lock:
            self._tasks.append((partial(copy_context().run, task), future))
            if not self._running and (self.ahead or len(self._tasks) > 1):
                thread = Thread(target=self._run, name="npad decoding")
                thread.start()
                self._thread, self._running = thread, True

        def result() -> T:
            if not future.done() and self._alone():
                self._run()
            return future.result()

        return result

    def look_ahead(self, items: Iterator[T]) -> Iterator[T]:
        return one_ahead(items)

    def _alone(self) -> bool:
        """Return whether the caller's thread must run the tasks, and let it."""
        with self._lock:
            alone, self._running = not self._running, True
            return alone

    def _run(self) -> None:
        while True:
            with self._lock:
                try:
                    task, future = self._tasks.popleft()
                except IndexError:
                    self._running = False
                    return
            try:
                future.set_result(task())
            except BaseException as error:  # raised again where the result is asked for
                future.set_exception(error)
            del task, future  # their tensors are the consumer's to keep

    def close(self) -> None:
        with self._lock:
            self._tasks.clear()
            thread = self._thread
        if thread is not None and thread is not current_thread():
            thread.join()


def runner_for(model: Model[Any], ahead: bool = True) -> Inline:
    """Return how a model's decoding is run: in the background on a GPU, else inline.

    `ahead` tells whether sources are read while others are decoded.

    On a CPU, decoding keeps all cores busy, so that overlap gains nothing. Inside a
    `torch.autocast` block, which holds for one thread only, decoding stays in that thread.
    """
    if Capabilities.of(model).device.type == "cuda" and not torch.is_autocast_enabled("cuda"):
        return Background(ahead)
    return Inline()


def one_ahead(items: Iterator[T]) -> Iterator[T]:
    """Yield each item after the next one has been computed; an error comes after all items."""
    try:
        item = next(items)
    except StopIteration:
        return
    while True:
        try:
            following = next(items)
        except StopIteration:
            yield item
            return
        except Exception:
            yield item
            raise
        yield item
        item = following
