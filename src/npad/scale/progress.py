"""How fast a corpus is translated, and how long the rest takes."""

from __future__ import annotations

import time
from collections.abc import Callable


class Progress:
    """The rate of a run, which may have begun with some texts finished.

    Args:
        total: texts in all.
        done: texts that an earlier run finished.
        clock: the time in seconds.
    """

    def __init__(
        self, total: int, done: int = 0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.total, self.begun, self.clock = total, done, clock
        self.done, self.start = done, clock()

    def reached(self, done: int) -> None:
        """Note how many texts are finished."""
        self.done = done

    @property
    def rate(self) -> float:
        """Texts per second of this run; 0 before the first are finished."""
        seconds = self.clock() - self.start
        return (self.done - self.begun) / seconds if seconds > 0 else 0.0

    @property
    def seconds_left(self) -> float | None:
        """The time that the rest takes at this rate; None if there is no rate yet."""
        return (self.total - self.done) / self.rate if self.rate else None

    def __str__(self) -> str:
        text = f"{self.done:,} of {self.total:,} sentences"
        if self.seconds_left is None:
            return text
        return f"{text}, {self.rate:,.1f} sentences/s, {clock_time(self.seconds_left)} left"


def clock_time(seconds: float) -> str:
    """Return a duration as m:ss, h:mm:ss or d days h:mm:ss."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    text = f"{hours}:{minutes:02}:{seconds:02}" if hours or days else f"{minutes}:{seconds:02}"
    return f"{days} days {text}" if days else text
