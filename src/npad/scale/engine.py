"""The seam between what is translated and where: `Engine.map(units)` yields results in order."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from functools import reduce
from types import TracebackType
from typing import Self

from npad.engine.memory import warn_halved
from npad.scale.units import Failed, Result, Unit
from npad.scale.worker import ModelSpec, NoMemory, Worker, run_unit


class Engine(ABC):
    """Runs units somewhere. A context manager, which ends its workers.

    Results are the same for every engine, number of workers, unit size and restart, but for
    near-ties in float32: a text's noise depends on the text and on the chain's number alone.
    """

    workers: int  # that units are run by

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

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class Local(Engine):
    """Runs units in this process, one after the other."""

    workers = 1

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
            return failure(unit, outcome.reason)
        warn_halved()
        return reduce(Result.joined, map(self._run, halves))


def failure(unit: Unit, reason: str) -> Result:
    """Return the result of a unit that no worker can run."""
    return Result(unit.first, tuple(Failed(reason) for _ in unit.texts))
