"""Workers: the seam between what is translated and where. Units in, results out in order.

`Local` is this process alone. A `Pool` has workers that may die, and runs lost units again; how
its workers are started and reached is a `Crew`: processes of this machine, or a Ray cluster's.
"""

from __future__ import annotations

import time
import warnings
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import reduce
from itertools import islice
from types import TracebackType
from typing import Any, Self

from npad.engine.memory import warn_halved
from npad.errors import InvalidInput, NpadError, WaitingWarning
from npad.scale.units import Failed, Result, Source, Unit, units_of
from npad.scale.worker import CannotLoad, Died, Event, ModelSpec, NoMemory, Ready, Worker, run_unit
from npad.search.request import Decoding
from npad.validation import counted, ensure_integer

AHEAD = 4  # units per worker that are in flight or wait for an earlier unit's result
DEATHS = 3  # workers that may die on a unit before it is halved, or given up if it cannot be
START_DEATHS = 5  # workers in a row that may die before they have loaded the model
POLL_SECONDS = 1.0  # between two looks at the clock while nothing happens


class WorkerError(NpadError, RuntimeError):
    """No worker can be started."""


class Workers(ABC):
    """Run units somewhere. A context manager, which ends its workers.

    Results are the same for all kinds and numbers of workers, unit sizes and restarts, but for
    near-ties in float32: a text's noise depends on the text and on the chain's number alone.
    """

    count: int  # of workers

    @abstractmethod
    def start(self) -> None:
        """Start the workers and wait until one has loaded its model; `map` does it otherwise."""

    @abstractmethod
    def map(self, units: Iterable[Unit]) -> Iterator[Result]:
        """Yield the result of each unit, in the order of the units.

        Units are read as workers become free; a bounded number is in flight, so memory does not
        depend on how many there are. One map at a time.
        """

    @abstractmethod
    def close(self) -> None:
        """End the workers."""

    def run(
        self,
        texts: Iterable[Source | Failed],
        decoding: Decoding,
        size: int,
        chain_parts: int = 1,
        first: int = 0,
        alternatives: int | None = None,
    ) -> Iterator[Result]:
        """Yield the results of texts in order, one per `size` texts; the arguments of `units_of`.

        If chains are divided, their candidates are merged here, and NPAD's selector chooses.
        """
        units = units_of(texts, decoding, size, chain_parts, first, alternatives)
        results = self.map(units)
        if chain_parts == 1:
            yield from results
            return
        while parts := list(islice(results, chain_parts)):
            yield parts[0].merged(parts[1:], decoding, alternatives)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class Local(Workers):
    """Runs units in this process, one after the other."""

    count = 1

    def __init__(self, spec: ModelSpec) -> None:
        self.spec = spec
        self.worker: Worker | None = None

    def start(self) -> None:
        if self.worker is None:
            self.worker = Worker(self.spec)

    def map(self, units: Iterable[Unit]) -> Iterator[Result]:
        self.start()
        return map(self._run, units)

    def close(self) -> None:
        self.worker = None

    def _run(self, unit: Unit) -> Result:
        assert self.worker is not None  # `map` has started it
        outcome = run_unit(self.worker, unit)
        if isinstance(outcome, Result):
            return outcome
        halves = unit.halves() if isinstance(outcome, NoMemory) else None
        if halves is None:
            return unit.failed(outcome.reason)
        warn_halved()
        return reduce(Result.joined, map(self._run, halves))


Handle = Any  # what a crew knows a worker by; hashable


class Crew(ABC):
    """Starts workers and talks to them; does not wait for any one of them."""

    start_seconds: float = 600.0  # that a worker may take where there is no other

    @abstractmethod
    def start(self) -> Handle:
        """Start a worker, which loads its model and then reports `Ready` or `CannotLoad`."""

    @abstractmethod
    def send(self, worker: Handle, unit: Unit) -> None:
        """Hand a unit to an idle worker; that it has died meanwhile is an event of `wait`."""

    @abstractmethod
    def wait(self, workers: Collection[Handle], seconds: float) -> list[tuple[Handle, Event]]:
        """Return what workers reported; an empty list if nothing happened for `seconds`."""

    @abstractmethod
    def is_starting(self, worker: Handle) -> bool:
        """Return whether a worker that has reported nothing yet is slow rather than dead."""

    @abstractmethod
    def stop(self, worker: Handle) -> None:
        """End a worker at once, dead or alive."""

    @abstractmethod
    def close(self) -> None:
        """Release what the crew holds, after its workers are stopped."""


@dataclass(eq=False)
class Assignment:
    """A unit, or a part of one, that is run by one worker at a time."""

    unit: Unit
    parts: list[Assignment]  # of the unit as it was read, this one included, in order
    deaths: int = 0
    result: Result | None = None

    @classmethod
    def whole(cls, unit: Unit) -> Assignment:
        assignment = cls(unit, [])
        assignment.parts.append(assignment)
        return assignment

    def run_smaller(self, reason: str, waiting: deque[Assignment]) -> None:
        """Queue both halves in place of this assignment; if it has none, its texts fail."""
        halves = self.unit.halves()
        if halves is None:
            self.result = self.unit.failed(reason)
            return
        assignments = [Assignment(half, self.parts) for half in halves]
        place = self.parts.index(self)
        self.parts[place : place + 1] = assignments
        waiting.extendleft(reversed(assignments))


class Pool(Workers):
    """Runs units on a crew's workers.

    A worker that dies is replaced, and its unit is run again. A unit on which several workers died,
    or that does not fit in memory, is halved; what cannot be halved any more fails alone.

    Args:
        crew: starts the workers.
        workers: their number.
    """

    def __init__(self, crew: Crew, workers: int) -> None:
        ensure_integer("workers", workers, 1)
        self.crew, self.count = crew, workers
        self.idle: set[Handle] = set()
        self.starting: set[Handle] = set()
        self.busy: dict[Handle, Assignment] = {}
        self.ready: dict[Handle, Ready] = {}  # where the workers are that have loaded the model
        self.start_deaths = 0  # since a worker was last ready
        self.deaths = 0  # workers that died in all
        self.alone_since: float | None = None  # when the pool was last seen without workers
        self.patience = crew.start_seconds  # seconds after that when the crew is asked about them

    def start(self) -> None:
        while not self.ready:
            self._replenish()
            self._ensure_starting()
            self._handle(deque())

    def map(self, units: Iterable[Unit]) -> Iterator[Result]:
        unread = map(Assignment.whole, units)
        waiting: deque[Assignment] = deque()  # that no worker runs
        order: deque[list[Assignment]] = deque()  # of units read and not yet yielded, by parts
        try:
            while True:
                for assignment in islice(unread, max(0, AHEAD * self.count - len(order))):
                    order.append(assignment.parts)
                    waiting.append(assignment)
                if not order:
                    return
                self._replenish()
                while waiting and self.idle:
                    self._send(waiting.popleft())
                results = [assignment.result for assignment in order[0]]
                if all(results):
                    order.popleft().clear()  # an assignment and its parts hold each other
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

    def _send(self, assignment: Assignment) -> None:
        worker = self.idle.pop()
        self.busy[worker] = assignment
        self.crew.send(worker, assignment.unit)

    def _replenish(self) -> None:
        """Start workers in place of those that died."""
        while len(self.idle) + len(self.starting) + len(self.busy) < self.count:
            self.starting.add(self.crew.start())

    def _ensure_starting(self) -> None:
        """Refuse to wait forever while there is no worker at all, and none is being started."""
        if self.ready:
            self.alone_since, self.patience = None, self.crew.start_seconds
            return
        now = time.monotonic()
        self.alone_since = now if self.alone_since is None else self.alone_since
        waited = now - self.alone_since
        if waited < self.patience:
            return
        if any(map(self.crew.is_starting, self.starting)):
            message = (
                f"no worker is ready after {waited:.0f} s; one is being started: waiting for it"
            )
            warnings.warn(message, WaitingWarning, stacklevel=1)
            self.patience = waited + self.crew.start_seconds
            return
        raise WorkerError(
            f"no worker started within {self.crew.start_seconds:.0f} s; the machines may have "
            "fewer CPUs or GPUs than a worker asks for: see --workers and --gpus-per-worker"
        )

    def _handle(self, waiting: deque[Assignment]) -> None:
        """Wait for events and act on them; what is to be run again goes to the front of the queue.

        waiting: the queue.
        """
        workers = [*self.busy, *self.starting, *self.idle]
        for worker, event in self.crew.wait(workers, POLL_SECONDS):
            assignment = self.busy.pop(worker, None)
            match event:
                case Ready():
                    self.starting.discard(worker)
                    self.idle.add(worker)
                    self.ready[worker] = event
                    self.start_deaths = 0
                case CannotLoad():
                    self._remove(worker)
                    raise InvalidInput(f"a worker cannot load the model: {event.reason}")
                case Died():
                    self._bury(worker, event, assignment, waiting)
                case Result() if assignment is not None:
                    self.idle.add(worker)
                    assignment.result = event
                    if event.halved:
                        warn_halved()
                case NoMemory() if assignment is not None:
                    self._remove(worker)  # what earlier units left in its memory goes with it
                    warn_halved()
                    if assignment.unit.halves() is None and not assignment.deaths:
                        assignment.deaths = DEATHS - 1  # one more attempt, in an empty worker
                        waiting.appendleft(assignment)
                    else:
                        assignment.run_smaller(event.reason, waiting)

    def _bury(
        self, worker: Handle, event: Died, assignment: Assignment | None, waiting: deque[Assignment]
    ) -> None:
        """Forget a dead worker, and run its unit again."""
        self.deaths += 1
        if worker in self.starting:
            self.start_deaths += 1
        self._remove(worker)
        if self.start_deaths >= START_DEATHS:
            raise WorkerError(
                f"{counted(self.start_deaths, 'worker')} in a row died while loading the model "
                f"({event.reason}); if memory is short, use fewer workers"
            )
        if assignment is None:
            return
        assignment.deaths += 1
        if assignment.deaths < DEATHS:
            waiting.appendleft(assignment)
        else:
            reason = f"{DEATHS} workers died on it ({event.reason})"
            assignment.run_smaller(reason, waiting)

    def _remove(self, worker: Handle) -> None:
        self.idle.discard(worker)
        self.starting.discard(worker)
        self.busy.pop(worker, None)
        self.ready.pop(worker, None)
        self.crew.stop(worker)
