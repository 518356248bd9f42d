"""How much of a report has been measured, and how long the rest takes.

The report is rendered with placeholders for what is not measured yet, which shows what it asks for.
Choices that rest on placeholders may turn out otherwise, so the forecast is repeated now and then.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, replace

from npad.reproduce.bench import Bench
from npad.reproduce.record import Key

PAUSE = 10  # times what a forecast took, before the next: it takes a tenth of a second or more


@dataclass(frozen=True)
class Outlook:
    """The state of a report's measurements."""

    done: int
    total: int  # an estimate
    seconds_left: float | None  # None before the first measurement


class Forecast:
    """Tells how far a bench is with a report.

    Args:
        bench: measures and records.
        render: asks a bench for every result of the report.
        clock: the time in seconds.
    """

    def __init__(
        self,
        bench: Bench,
        render: Callable[[Bench], object],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.bench, self.render, self.clock = bench, render, clock
        self.start, self.begun = clock(), set(bench.record.results)
        self._latest, self._due, self._made = Outlook(0, 0, None), self.start, self.start

    def outlook(self) -> Outlook:
        """Return the measurements done, their total, and the time left at the rate so far."""
        now, done = self.clock(), len(self.bench.record.results)
        if now >= self._due:
            self._latest = self._rehearse()
            self._made = self.clock()
            self._due = self._made + PAUSE * (self._made - now)
        left = self._latest.seconds_left
        if left is not None:
            left = max(0.0, left - max(0.0, now - self._made))
        total = max(done, self._latest.total)
        return replace(self._latest, done=done, total=total, seconds_left=left)

    def _rehearse(self) -> Outlook:
        rehearsal, work = copy(self.bench), dict[Key, float]()
        rehearsal.rehearsed = work
        self.render(rehearsal)
        done = self.bench.record.results
        finished = sum(work.get(key, 0.0) for key in done if key not in self.begun)
        left = sum(rows for key, rows in work.items() if key not in done)
        seconds = self.clock() - self.start
        return Outlook(
            len(done),
            len(done) + sum(key not in done for key in work),
            left * seconds / finished if finished else None,
        )
