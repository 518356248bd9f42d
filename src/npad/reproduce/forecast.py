"""How much of a report has been measured, and how long the rest takes.

The report is rendered with placeholders for what is not measured yet, which shows what it asks for.
Choices that rest on placeholders may turn out otherwise, so the forecast is repeated now and then.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

from npad.evaluate.bootstrap import Difference
from npad.reproduce.bench import Bench, Row
from npad.reproduce.record import Form, Key, has_form
from npad.search.decoder import Decoder

PAUSE = 10  # times what a forecast took, before the next: it takes a tenth of a second or more
CALLS_PER_ROW = 20  # model calls of one row of a search, about the length of an output


@dataclass(frozen=True)
class Outlook:
    """The state of a report's measurements."""

    done: int
    total: int  # an estimate
    seconds_left: float | None  # None before the first measurement


class Rehearsal(Bench):
    """A bench that measures nothing and keeps the keys that a report asks for, with their work.

    Args:
        bench: the bench whose recorded results are used.
    """

    def __init__(self, bench: Bench) -> None:
        vars(self).update(vars(bench))
        self.work: dict[Key, float] = {}  # rows of a search, by key
        self._rows = 0.0  # of the measurement that is being asked for

    def row(self, set_name: str, decoder: Decoder, training_sigma: float = 0.0) -> Row:
        self._rows = float(len(self.sets[set_name].sources) * decoder.rows)
        return super().row(set_name, decoder, training_sigma)

    def exact(self, set_name: str, sentences: int, budget: int) -> list[tuple[float, bool]]:
        self._rows = sentences * budget / CALLS_PER_ROW
        return super().exact(set_name, sentences, budget)

    def finished(self) -> float:
        return 1.0

    def result(self, key: Key, measure: Callable[[], Any] | None, form: Form) -> Any:
        self.work.setdefault(key, self._rows)
        self._rows = 0.0
        recorded = self.record.results.get(key)
        return recorded if has_form(recorded, form) else self._placeholder(key)

    def _placeholder(self, key: Key) -> Any:
        """Return a result in the form that a measurement has; it asks for what it rests on."""
        match key[0]:
            case "entropy":
                return [[1.0, 1]]
            case "paired" | "paired sets":
                count = 1 + len(self.measures.metrics)
                return [{field.name: 0.0 for field in fields(Difference)}] * count
            case "exact":
                return [[-1.0, True]] * int(key[2])
            case "errors":
                self.exact(key[1], key[3], key[4])
                return None
        return dict.fromkeys(self.row_form, 1) | {"signature": ""}


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
        rehearsal = Rehearsal(self.bench)
        self.render(rehearsal)
        work, done = rehearsal.work, self.bench.record.results
        finished = sum(work.get(key, 0.0) for key in done if key not in self.begun)
        left = sum(rows for key, rows in work.items() if key not in done)
        seconds = self.clock() - self.start
        return Outlook(
            len(done),
            len(done) + sum(key not in done for key in work),
            left * seconds / finished if finished else None,
        )
