"""One thread per model: requests wait in a bounded queue, and equal ones run as one batch."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from npad.serve.refusals import busy


@dataclass(eq=False)
class Job:
    """Work for a model's thread.

    Attributes:
        run: runs jobs with the same key together, and sets their results.
        key: jobs with equal keys may run together; None: alone.
        payload: what `run` needs.
        size: texts, which bound a batch.
        result: set by `run`.
        cancelled: nobody waits for the result.
    """

    run: Callable[[Sequence[Job]], None]
    key: Hashable | None = None
    payload: Any = None
    size: int = 1
    result: Future[Any] = field(default_factory=Future)
    cancelled: bool = False

    def cancel(self) -> None:
        """Let the job end at the next check: nobody waits for it."""
        self.cancelled = True

    def fail(self, error: BaseException) -> None:
        """Set an error as the result, unless there is one."""
        if not self.result.done():
            self.result.set_exception(error)


def alone(work: Callable[[Job], Any]) -> Job:
    """Return a job that runs by itself; `work` returns its result."""

    def run(jobs: Sequence[Job]) -> None:
        for job in jobs:
            job.result.set_result(work(job))

    return Job(run)


class Worker:
    """A thread that runs jobs one batch at a time, first come, first served.

    While a batch runs, requests gather; the next batch takes the oldest and all others with its
    key. So a request that finds the model idle does not wait for company.

    Args:
        name: of the thread.
        limit: jobs that may wait.
        batch: texts of a batch, unless a single job has more.
    """

    def __init__(self, name: str, limit: int, batch: int) -> None:
        self.limit, self.batch = limit, batch
        self.batches = self.batched = 0  # batches so far, and the jobs in them
        self._waiting: deque[Job] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._work, name=f"npad {name}", daemon=True)
        self._thread.start()

    def __len__(self) -> int:
        """Jobs that wait."""
        return len(self._waiting)

    def submit(self, job: Job) -> Job:
        """Put a job into the queue.

        Raises:
            Refused: too many jobs wait, or the server is shutting down.
        """
        with self._changed:
            if self._closed:
                raise busy(503, "the server is shutting down", 10)
            if len(self._waiting) >= self.limit:
                self._drop_cancelled()
            if len(self._waiting) >= self.limit:
                raise busy(429, f"{self.limit} requests are waiting")
            self._waiting.append(job)
            self._changed.notify()
        return job

    def close(self) -> None:
        """Finish the jobs that wait, then end the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _work(self) -> None:
        while taken := self._next():
            jobs = [job for job in taken if job.result.set_running_or_notify_cancel()]
            if not jobs:
                continue
            self.batches += 1
            self.batched += len(jobs)
            try:
                jobs[0].run(jobs)
            except BaseException as error:  # a result of the jobs, not of this thread
                for job in jobs:
                    job.fail(error)
            for job in jobs:
                job.fail(RuntimeError("a job ended without a result"))
            del job, jobs, taken  # their texts and results

    def _next(self) -> list[Job]:
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
        for job in [job for job in self._waiting if job.cancelled]:
            self._waiting.remove(job)
            job.result.cancel()

    def _take(self) -> list[Job]:
        first = self._waiting.popleft()
        jobs, texts = [first], first.size
        if first.key is None:
            return jobs
        for job in [job for job in self._waiting if job.key == first.key]:
            if texts + job.size <= self.batch:
                self._waiting.remove(job)
                jobs.append(job)
                texts += job.size
        return jobs
