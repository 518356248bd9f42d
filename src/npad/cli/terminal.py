"""Notes, tables and progress bars on the terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from npad.validation import printable

SECONDS_PER_NOTE = 60.0  # between two lines of progress where there is no terminal


def note(message: str) -> None:
    """Print one line on stderr, whatever a file's name in it holds."""
    print(f"npad: {printable(message)}", file=sys.stderr)


def clock_time(seconds: float) -> str:
    """Return a duration as m:ss, h:mm:ss or d days h:mm:ss."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    text = f"{hours}:{minutes:02}:{seconds:02}" if hours or days else f"{minutes}:{seconds:02}"
    return f"{days} days {text}" if days else text


def console() -> Console:
    """Return standard output for tables and sentences; brackets in a text are not markup."""
    return Console(markup=False, highlight=False)


def figures(rows: Mapping[str, str]) -> Table:
    """Return a table of names and values."""
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows.items():
        table.add_row(name, value)
    return table


def plain_table(title: str, columns: Iterable[str], padding: Any = 0) -> Table:
    """Return a table without a frame: names in the first column, figures in the others."""
    table = Table(
        title=title,
        title_justify="left",
        title_style="bold",
        box=SIMPLE_HEAD,
        pad_edge=False,
        show_edge=False,
        padding=padding,  # the box has a space between columns
    )
    for number, name in enumerate(columns):
        table.add_column(name, justify="right" if number else "left", overflow="fold")
    return table


def is_terminal(path: str | Path) -> bool:
    """Return whether this input, `-` for standard input, is a terminal where lines are typed."""
    if str(path) == "-":
        return sys.stdin is not None and sys.stdin.isatty()
    try:
        if not Path(path).is_char_device():
            return False
        with open(path, "rb") as device:
            return device.isatty()
    except OSError:  # reported when it is read
        return False


class Notes:
    """Progress as a line now and then: `translating: 1,024 of 5,000, 19.8/s, 3:20 left`.

    The rate counts from the first call: an earlier run may have done a part.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock, self.last = clock, clock()
        self.begun: dict[str, tuple[float, int]] = {}  # when a description was new, and how much

    def __call__(self, description: str, done: int, total: int) -> None:
        """Print a line if the last one is a minute old; total: 0 if unknown."""
        now = self.clock()
        start, begun = self.begun.setdefault(description, (now, done))
        if now - self.last < SECONDS_PER_NOTE:
            return
        self.last = now
        line = f"{description}: {done:,}" + (f" of {total:,}" if total else "")
        if done > begun:
            rate = (done - begun) / (now - start)
            line += f", {rate:,.1f}/s"
            line += f", {clock_time((total - done) / rate)} left" if total else ""
        note(line)


class RateColumn(ProgressColumn):
    """Shows the steps per second."""

    def render(self, task: Task) -> Text:
        return Text(f"{task.speed:,.1f}/s" if task.speed else "")


class Bar:
    """Moves a progress bar: by what is done of what, or by the sources that have been decoded.

    Args:
        show: moves the bar; its arguments are those of a call.
        description: of the sources' progress.
        total: the number of sources, 0 if unknown.
    """

    def __init__(
        self, show: Callable[[str, int, int], None], description: str = "", total: int = 0
    ) -> None:
        self.show, self.description, self.total, self.done = show, description, total, 0

    def __call__(self, description: str, done: int, total: int) -> None:
        """Note that so many steps are done; total: 0 if unknown."""
        self.show(description, done, total)

    def add(self, texts: int) -> None:
        """Note that so many more sources have been decoded."""
        self.reach(self.done + texts)

    def reach(self, done: int) -> None:
        """Note that so many sources are done in all, blank ones included."""
        self.done = max(done, self.done)
        self.show(self.description, self.done, self.total)


@contextmanager
def bar(
    description: str, total: int | None = None, inputs: Iterable[str | Path] = ()
) -> Iterator[Bar]:
    """Show progress on stderr: a bar on a terminal, elsewhere a line every minute.

    There is neither if one of the `inputs` is a terminal: redrawing a bar would erase the line
    being typed.

    Args:
        description: what is in progress.
        total: the number of steps, if it is known.
        inputs: the files that are read meanwhile.
    """
    console = Console(stderr=True)
    if any(map(is_terminal, inputs)):
        yield Bar(lambda description, done, total: None)
        return
    if not console.is_terminal:
        yield Bar(Notes(), description, total or 0)
        return
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        RateColumn(),
        TimeRemainingColumn(elapsed_when_finished=True),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(description, total=total)

        def show(description: str, done: int, total: int) -> None:
            progress.update(task, description=description, completed=done, total=total or None)

        yield Bar(show, description, total or 0)
