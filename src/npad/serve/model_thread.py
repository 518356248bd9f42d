"""One thread per model: requests wait in a bounded queue, and equal ones run as one batch."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from npad.engine.cost import ModelCalls, count_calls
from npad.engine.deadline import Stopped, stopped_by
from npad.serve.limits import busy


@dataclass(eq=False)
class QueuedRequest:
    """A request that waits for a model's thread.

    Attributes:
        run: maps the payloads of a batch to their results; an exception among the results is
            raised by the future of its request.
        payload: what `run` needs.
        key: requests with equal keys may run together; None: alone.
        size: inputs, which bound a batch.
        result: of this request.
        cancelled: nobody waits for the result.
    """

    run: Callable[[Sequence[Any]], Sequence[Any]]
    payload: Any = None
    key: Hashable | None = None
    size: int = 1
    result: Future[Any] = field(default_factory=Future)
    cancelled: bool = False

    @classmethod
    def alone(cls, work: Callable[[], Any]) -> QueuedRequest:
        """Return a request that runs by itself; `work` returns its result."""
        return cls(lambda _: [work()])

    def cancel(self) -> None:
        """Let the request end at the search's next check: nobody waits for it."""
        self.cancelled = True

    def finish(self, result: Any) -> None:
        """Set the result, or the exception to raise instead."""
        if isinstance(result, BaseException):
            self.result.set_exception(result)
        else:
            self.result.set_result(result)


class ModelThread:
    """A thread that runs requests one batch at a time, first come, first served.

    While a batch runs, requests gather; the next batch takes the oldest and all others with its
    key. So a request that finds the model idle does not wait for company.

    Args:
        name: of the thread.
        limit: requests that may wait.
        batch: inputs of a batch, unless a single request has more.
    """

    def __init__(self, name: str, limit: int, batch: int) -> None:
        self.limit, self.batch = limit, batch
        self.batches = self.batched = 0  # batches so far, and the requests in them
        self.calls = ModelCalls()  # of all batches
        self._waiting: deque[QueuedRequest] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._work, name=f"npad {name}", daemon=True)
        self._thread.start()

    def __len__(self) -> int:
        """Requests that wait."""
        return len(self._waiting)

    def submit(self, request: QueuedRequest) -> QueuedRequest:
        """Put a request into the queue.

        Raises:
            RequestRefused: too many requests wait, or the server is shutting down.
        """
        with self._changed:
            if self._closed:
                raise busy(503, "the server is shutting down", 10)
            if len(self._waiting) >= self.limit:
                self._drop_cancelled()
            if len(self._waiting) >= self.limit:
                raise busy(429, f"{self.limit} requests are waiting")
            self._waiting.append(request)
            self._changed.notify()
        return request

    def close(self) -> None:
        """Finish the requests that wait, then end the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _work(self) -> None:
        while taken := self._next():
            batch = [request for request in taken if request.result.set_running_or_notify_cancel()]
            if batch:
                self.batches += 1
                self.batched += len(batch)
                self._run(batch)
            del batch, taken  # their inputs and results

    def _run(self, batch: Sequence[QueuedRequest]) -> None:
        """Run a batch; if it fails, each request alone, so that only the faulty ones fail."""
        try:
            with (
                stopped_by(lambda: all(request.cancelled for request in batch)),
                count_calls(self.calls),
            ):
                results = batch[0].run([request.payload for request in batch])
            for request, result in zip(batch, results, strict=True):
                request.finish(result)
        except BaseException as error:  # a result of the requests, not of this thread
            left = [request for request in batch if not request.result.done()]
            for request in left:
                if len(batch) == 1 or isinstance(error, Stopped):
                    request.finish(error)
                else:
                    self._run([request])

    def _next(self) -> list[QueuedRequest]:
        """Return the next batch, or none once the queue is closed and empty."""
        with self._changed:
            while True:
                self._drop_cancelled()
                if self._waiting:
                    return self._take()
                if self._closed:
                    return []
                self._changed.wait()

    def _drop_cancelled(self) -> None:
        for request in [request for request in self._waiting if request.cancelled]:
            self._waiting.remove(request)
            request.result.cancel()

    def _take(self) -> list[QueuedRequest]:
        first = self._waiting.popleft()
        batch, size = [first], first.size
        if first.key is None:
            return batch
        for request in [request for request in self._waiting if request.key == first.key]:
            if size + request.size <= self.batch:
                self._waiting.remove(request)
                batch.append(request)
                size += request.size
        return batch
