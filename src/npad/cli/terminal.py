"""What people see while they wait: on stderr, and only on a terminal."""

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
    """One line on stderr."""
    print(f"npad: {message}", file=sys.stderr)


def console() -> Console:
    """Standard output for tables and sentences. Brackets in a text are a text's own, not markup."""
    return Console(markup=False, highlight=False)


def is_terminal(path: str | Path) -> bool:
    """Whether lines of this input are typed: standard input (`-`) or a device that is a terminal."""
    if str(path) == "-":
        return sys.stdin is not None and sys.stdin.isatty()
    try:
        if not Path(path).is_char_device():
            return False
        with open(path, "rb") as device:
            return device.isatty()
    except OSError:  # named once it is read
        return False


@contextmanager
def bar(
    what: str, total: int | None = None, inputs: Iterable[str | Path] = ()
) -> Iterator[Callable[[str, int, int], None]]:
    """A progress bar; what it yields takes (what, done, of how many; 0: not known).

    There is none while one of the `inputs` is a terminal: redrawing it would erase the line being typed.
    """
    console = Console(stderr=True)
    if not console.is_terminal or any(map(is_terminal, inputs)):
        yield lambda what, done, of: None
        return
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(elapsed_when_finished=True),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(what, total=total)
        yield lambda what, done, of: progress.update(
            task, description=what, completed=done, total=of or None
        )
