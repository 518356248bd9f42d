"""A pool of workers that may die: units in, results out in order, lost units run again.

The pool decides which worker runs which unit. How workers are started and reached is a `Crew`:
processes of this machine, or actors of a Ray cluster.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import reduce
from typing import Any

from npad.engine.memory import warn_halved
from npad.errors import InvalidInput, NpadError
from npad.scale.engine import Engine, failure
from npad.scale.units import Result, Unit
from npad.scale.worker import Died, NoMemory, Ready, Refused
from npad.validation import ensure_integer

AHEAD = 4  # units per worker that are in flight or wait for an earlier unit's result
DEATHS = 3  # workers that may die on a unit before it is halved, or given up if it cannot be
START_DEATHS = 5  # workers in a row that may die before they have loaded the model
POLL_SECONDS = 1.0  # between two looks at the clock while nothing happens


class WorkerError(NpadError, RuntimeError):
    """No worker can be started."""


Event = Ready | Refused | Result | NoMemory | Died
Handle = Any  # what a crew knows a worker by; hashable


class Crew(ABC):
    """Starts workers and talks to them; does not wait for any one of them."""

    start_seconds: float = 600.0  # that a worker may take where there is no other

    @abstractmethod
    def start(self) -> Handle:
        """Start a worker, which loads its model and then reports `Ready` or `Refused`."""

    @abstractmethod
    def send(self, worker: Handle, unit: Unit) -> None:
        """Hand a unit to an idle worker; that it has died meanwhile is an event of `wait`."""

    @abstractmethod
    def wait(self, workers: Collection[Handle], seconds: float) -> list[tuple[Handle, Event]]:
        """Return what workers reported; an empty list if nothing happened for `seconds`."""

    @abstractmethod
    def stop(self, worker: Handle) -> None:
        """End a worker at once, dead or alive."""

    @abstractmethod
    def close(self) -> None:
        """Release what the crew holds, after its workers are stopped."""


@dataclass(eq=False)
class Job:
    """A unit, or a part of one, that is run by one worker at a time."""

    unit: Unit
    parts: list[Job]  # of the unit as it was read, this one included, in order
    deaths: int = 0
    result: Result | None = None

    @classmethod
    def whole(cls, unit: Unit) -> Job:
        job = cls(unit, [])
        job.parts.append(job)
        return job

    def halve(self) -> list[Job]:
        """Replace this job by two of half its size; return them, or nothing if it is too small."""
        halves = self.unit.halves()
        if halves is None:
            return []
        jobs = [Job(half, self.parts) for half in halves]
        place = self.parts.index(self)
        self.parts[place : place + 1] = jobs
        return jobs


class Pool(Engine):
    """Runs units on a crew's workers.

    A worker that dies is replaced, and its unit is run again. A unit on which several workers died,
    or that does not fit in memory, is halved; what cannot be halved any more fails alone.

    Args:
        crew: starts the workers.
        workers: their number.
    """

    def __init__(self, crew: Crew, workers: int) -> None:
        ensure_integer("workers", workers, 1)
        self.crew, self.workers = crew, workers
        self.idle: set[Handle] = set()
        self.starting: set[Handle] = set()
        self.busy: dict[Handle, Job] = {}
        self.ready: dict[Handle, Ready] = {}  # where the workers are that have loaded the model
        self.start_deaths = 0  # since a worker was last ready
        self.deaths = 0  # workers that died in all
        self.alone_since: float | None = None  # when the pool was last seen without workers

    def start(self) -> None:
        while not self.ready:
            self._replenish()
            self._ensure_starting()
            self._handle(deque())

    def map(self, units: Iterable[Unit]) -> Iterator[Result]:
        unread = iter(units)
        waiting: deque[Job] = deque()  # jobs that no worker runs
        order: deque[list[Job]] = deque()  # units that were read and not yet yielded, by parts
        exhausted = False
        try:
            while True:
                while not exhausted and len(order) < AHEAD * self.workers:
                    unit = next(unread, None)
                    if unit is None:
                        exhausted = True
                    else:
                        job = Job.whole(unit)
                        order.append(job.parts)
                        waiting.append(job)
                if not order:
                    return
                self._replenish()
                while waiting and self.idle:
                    self._send(waiting.popleft())
                results = [job.result for job in order[0]]
                if all(results):
                    order.popleft().clear()  # a job and its parts hold each other
                    yield reduce(Result.joined, filter(None, results))
                    continue
                self._ensure_starting()
                self._handle(waiting)
        finally:
            for worker in list(self.busy):  # of a map that was abandoned
                self._remove(worker)

    def close(self) -> None:
        for worker in [*self.idle, *self.starting, *self.busy]:
            self._remove(worker)
        self.crew.close()

    def _send(self, job: Job) -> None:
        worker = self.idle.pop()
        self.busy[worker] = job
        self.crew.send(worker, job.unit)

    def _replenish(self) -> None:
        """Start workers in the place of those that died."""
        while len(self.idle) + len(self.starting) + len(self.busy) < self.workers:
            self.starting.add(self.crew.start())

    def _ensure_starting(self) -> None:
        """Refuse to wait for ever while there is no worker at all."""
        if self.ready:
            self.alone_since = None
            return
        now = time.monotonic()
        self.alone_since = now if self.alone_since is None else self.alone_since
        if now - self.alone_since < self.crew.start_seconds:
            return
        raise WorkerError(
            f"no worker started within {self.crew.start_seconds:.0f} s; the machines may have "
            "fewer CPUs or GPUs than a worker asks for: see --workers and --gpus-per-worker"
        )

    def _handle(self, waiting: deque[Job]) -> None:
        """Wait for events and act on them; jobs to be run again go to the front of `waiting`."""
        workers = [*self.busy, *self.starting, *self.idle]
        for worker, event in self.crew.wait(workers, POLL_SECONDS):
            job = self.busy.pop(worker, None)
            match event:
                case Ready():
                    self.starting.discard(worker)
                    self.idle.add(worker)
                    self.ready[worker] = event
                    self.start_deaths = 0
                case Refused():
                    self._remove(worker)
                    raise InvalidInput(f"a worker cannot load the model: {event.reason}")
                case Died():
                    self._bury(worker, event, job, waiting)
                case Result() if job is not None:
                    self.idle.add(worker)
                    job.result = event
                    if event.halved:
                        warn_halved()
                case NoMemory() if job is not None:
                    self._remove(worker)  # what earlier units left in its memory goes with it
                    warn_halved()
                    if job.unit.halves() is None and not job.deaths:
                        job.deaths = DEATHS - 1  # one more attempt, in an empty worker
                        waiting.appendleft(job)
                    else:
                        _run_smaller(job, event.reason, waiting)

    def _bury(self, worker: Handle, event: Died, job: Job | None, waiting: deque[Job]) -> None:
        """Forget a dead worker, and run its job again."""
        self.deaths += 1
        if worker in self.starting:
            self.start_deaths += 1
        self._remove(worker)
        if self.start_deaths >= START_DEATHS:
            raise WorkerError(
                f"{self.start_deaths} workers in a row died while they loaded the model "
                f"({event.reason}); if memory is short, use fewer workers"
            )
        if job is None:
            return
        job.deaths += 1
        if job.deaths < DEATHS:
            waiting.appendleft(job)
        else:
            _run_smaller(job, f"{DEATHS} workers died on it ({event.reason})", waiting)

    def _remove(self, worker: Handle) -> None:
        self.idle.discard(worker)
        self.starting.discard(worker)
        self.busy.pop(worker, None)
        self.ready.pop(worker, None)
        self.crew.stop(worker)


def _run_smaller(job: Job, reason: str, waiting: deque[Job]) -> None:
    """Queue both halves of a job; if it has none, its texts fail."""
    halves = job.halve()
    waiting.extendleft(reversed(halves))
    if not halves:
        job.result = failure(job.unit, reason)
