"""What people see while they wait: on stderr, and only on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn


def note(message: str) -> None:
    """One line on stderr."""
    print(f"npad: {message}", file=sys.stderr)


def console() -> Console:
    """Standard output for tables and sentences. Brackets in a text are a text's own, not markup."""
    return Console(markup=False, highlight=False)


@contextmanager
def bar(what: str, total: int | None = None) -> Iterator[Callable[[str, int, int], None]]:
    """A progress bar; what it yields takes (what, done, of how many; 0: not known)."""
    console = Console(stderr=True)
    if not console.is_terminal:
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
        yield lambda what, done, of: progress.update(task, description=what, completed=done, total=of or None)
