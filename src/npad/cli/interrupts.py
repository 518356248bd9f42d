"""What an interrupted run says: how it continues."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def resumable(command: str, folder: Path) -> Iterator[None]:
    """Add to an interrupt how the run of a command in a folder continues, if it has begun."""
    try:
        yield
    except KeyboardInterrupt as error:
        if (folder / "run.json").exists():
            error.add_note(f"{command} {folder} --resume continues")
        raise
