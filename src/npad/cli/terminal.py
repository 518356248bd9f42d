"""Notes, tables and progress bars on the terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeRemainingColumn,
)


def note(message: str) -> None:
    """Print one line on stderr."""
    print(f"npad: {message}", file=sys.stderr)


def console() -> Console:
    """Return standard output for tables and sentences; brackets in a text are not markup."""
    return Console(markup=False, highlight=False)


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


@contextmanager
def bar(
    description: str, total: int | None = None, inputs: Iterable[str | Path] = ()
) -> Iterator[Callable[[str, int, int], None]]:
    """Show a progress bar on stderr if that is a terminal.

    There is no bar if one of the `inputs` is a terminal: redrawing it would erase the line being
    typed.

    Args:
        description: what is in progress.
        total: the number of steps, if it is known.
        inputs: the files that are read meanwhile.

    Yields:
        A function of (description, steps done, total; 0 if unknown) that updates the bar.
    """
    console = Console(stderr=True)
    if not console.is_terminal or any(map(is_terminal, inputs)):
        yield lambda description, done, total: None
        return
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(elapsed_when_finished=True),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(description, total=total)
        yield lambda description, done, total: progress.update(
            task, description=description, completed=done, total=total or None
        )
