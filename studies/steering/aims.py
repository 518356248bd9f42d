"""The results of a data set on steering, and the aims: reached or missed, by code."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any

from npad.evaluate.bootstrap import Difference
from npad.reproduce.markdown import markdown_table
from npad.reproduce.record import Record
from studies.steering.rows import SIZES
from studies.steering.scores import NORMALISED

STEERED_NPAD, NORMALISED_BEAM = f"steered NPAD-5{NORMALISED}", f"beam 10{NORMALISED}"
NEAR = 0.2  # BLEU that steered greedy search may be behind a beam of 5
SLOWER = 1.2  # the time that it may take, greedy search's being 1
DEVICES = {"cuda": "GPU", "cpu": "CPU"}
NOTE_ON_TIMES = """\
Differences are to a beam of 5. Times are multiples of greedy search's, ratios of medians, and hold
the clean judge's pass over the outputs; `search alone` leaves it out.
"""
Statistic = Callable[[Sequence[float]], float]


def samples(width: int) -> list[str]:
    """Return the systems that sample, within the calls of a beam."""
    names = ("shared samples for beam", "arithmetic samples for beam", "stochastic beam")
    return [f"{name} {width}" for name in names]


SYSTEMS = (
    "greedy",
    "steered greedy",
    "greedy, fine-tuned",
    "beam 5",
    f"beam 5{NORMALISED}",
    "beam 10",
    f"beam 10{NORMALISED}",
    "steered beam 5",
    "beam 5, fine-tuned",
    *(
        f"{over}NPAD-{chains}{how}"
        for chains in SIZES
        for over in ("", "steered ")
        for how in ("", NORMALISED)
    ),
    *(name for width in SIZES for name in samples(width)),
)


class SetResults:
    """The results of one data set.

    Args:
        results: all results.
        title: of the data set.
    """

    def __init__(self, results: Record, title: str) -> None:
        self.title = title
        self.found = {
            (key[0], *key[2:]): value
            for key, value in results.results.items()
            if key[1] == title and key[0] != "grid"
        }
        self.about: dict[str, Any] = self.found[("about",)]

    @property
    def systems(self) -> list[str]:
        """The systems that were measured, in the order of the report."""
        measured = {key[1] for key in self.found if key[0] == "figures"}
        return [system for system in SYSTEMS if system in measured]

    def figures(self, system: str) -> list[dict[str, Any]]:
        """Return the figures of a system, one per seed."""
        return [value for key, value in self.found.items() if key[:2] == ("figures", system)]

    def mean(self, system: str, figure: str) -> float:
        return statistics.fmean(row[figure] for row in self.figures(system))

    def cell(self, system: str, figure: str, digits: int = 2) -> str:
        values = [row[figure] for row in self.figures(system)]
        spread = f" ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else ""
        return f"{statistics.fmean(values):.{digits}f}{spread}"

    def difference(self, system: str, against: str, figure: str = "bleu") -> Difference | None:
        """Return the difference of two systems, or None if it was not measured."""
        value = self.found.get(("difference", system, against))
        return None if value is None else Difference(**value[figure])

    def seconds(self, device: str, system: str, of: Statistic = statistics.median) -> float | None:
        """Return the median time of a system on a device, if it was measured.

        NPAD's length-normalised row is a choice among the same candidates, so it is timed once.
        """
        value = self.found.get(("seconds", device, system))
        if value is None:
            value = self.found.get(("seconds", device, system.removesuffix(NORMALISED)))
        return None if value is None else of(value["seconds"])

    def ratio(self, device: str, system: str, of: Statistic = statistics.median) -> float | None:
        """Return the time of a system on a device, greedy search's being 1."""
        seconds, greedy = (self.seconds(device, name, of) for name in (system, "greedy"))
        return None if seconds is None or greedy is None else seconds / greedy

    def chrf_gap(self, system: str, against: str) -> str:
        return f"{self.mean(system, 'chrf') - self.mean(against, 'chrf'):+.2f}"

    def seeds(self, system: str) -> int:
        return len(self.figures(system))


def near(data: SetResults) -> bool | None:
    """Return whether steered greedy search is near a beam of 5 in BLEU; None if not measured."""
    gap = data.difference("steered greedy", "beam 5")
    return None if gap is None else gap.value >= -NEAR


def fast(data: SetResults) -> bool | None:
    """Return whether steered greedy search is about as fast as greedy search, on a GPU if timed."""
    ratios = [data.ratio(device, "steered greedy") for device in DEVICES]
    measured = [ratio for ratio in ratios if ratio is not None]
    return measured[0] <= SLOWER if measured else None


def reached(data: SetResults) -> bool:
    """Return whether the first aim is reached on a set."""
    return bool(near(data)) and bool(fast(data))


def above_beam(data: SetResults) -> bool:
    """Return whether NPAD-5 over a steered model is not below a beam of 10, for no more calls.

    Both select by length-normalised score.
    """
    gap = data.difference(STEERED_NPAD, NORMALISED_BEAM)
    if gap is None or gap.value < 0:
        return False
    return data.mean(STEERED_NPAD, "calls") <= data.mean(NORMALISED_BEAM, "calls")


def aims(sets: Sequence[SetResults]) -> str:
    """Return the tables of the aims: each stated as reached or missed, with its figures."""
    return "\n".join([near_the_beam(sets), NOTE_ON_TIMES, above_a_wide_beam(sets)])


def near_the_beam(sets: Sequence[SetResults]) -> str:
    """Return the table of the first aim, steered greedy search against a beam of 5."""
    header = ["data set", "BLEU", "chrF", f"BLEU within {NEAR}", "time, GPU", "fastest pass"]
    header += ["search alone", "time, CPU", "search alone", f"time at most {SLOWER}", "aim"]
    lines = []
    for data in sets:
        ratios = [
            data.ratio("cuda", "steered greedy"),
            data.ratio("cuda", "steered greedy", min),
            data.ratio("cuda", "steered greedy, search alone"),
            data.ratio("cpu", "steered greedy"),
            data.ratio("cpu", "steered greedy, search alone"),
        ]
        times = ["–" if ratio is None else f"{ratio:.2f}" for ratio in ratios]
        gap = data.difference("steered greedy", "beam 5")
        chrf = "–" if gap is None else data.chrf_gap("steered greedy", "beam 5")
        verdict = "reached" if reached(data) else "missed"
        cells = [str(gap), chrf, _yes(near(data)), *times, _yes(fast(data)), verdict]
        lines.append([data.title, *cells])
    return markdown_table(header, lines)


def above_a_wide_beam(sets: Sequence[SetResults]) -> str:
    """Return the table of the second aim, NPAD over a steered model against a beam of 10."""
    against = NORMALISED_BEAM
    header = ["data set", f"BLEU − {against}", "chrF", "calls", "calls of the beam", "aim"]
    lines = []
    for data in sets:
        for chains in SIZES:
            for how in ("", NORMALISED):
                system = f"steered NPAD-{chains}{how}"
                gap = data.difference(system, against)
                if gap is not None:
                    calls = [f"{data.mean(name, 'calls'):.0f}" for name in (system, against)]
                    verdict = "reached" if above_beam(data) else "missed"
                    cells = [str(gap), data.chrf_gap(system, against), *calls]
                    cells.append(verdict if system == STEERED_NPAD else "")
                    lines.append([f"{data.title}, {system}", *cells])
    return markdown_table(header, lines)


def _yes(value: bool | None) -> str:
    return "–" if value is None else "yes" if value else "no"
