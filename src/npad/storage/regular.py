"""Reading files that may be damaged or hostile: regular files only, of bounded size, plain JSON.

A pipe blocks whoever opens it and a device such as /dev/zero never ends; both are refused before
they are opened. Every failure is a StorageError of one line.
"""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any, BinaryIO

from npad.errors import StorageError

MOST_JSON = 1 << 26  # bytes; npad's own JSON files have a few kilobytes


def ensure_regular(path: str | Path, most_bytes: int | None = None) -> None:
    """Refuse what is no regular file, links followed, or one of more than `most_bytes`."""
    try:
        status = os.stat(path)
    except (OSError, ValueError) as error:
        raise StorageError(f"cannot read {path}: {_reason(error)}") from error
    _check(path, status, most_bytes)


def open_regular(path: str | Path, most_bytes: int | None = None) -> BinaryIO:
    """Open a regular file for reading bytes; never blocks, even where a pipe takes its place."""
    ensure_regular(path, most_bytes)
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    try:
        file = open(path, "rb", opener=lambda name, _: os.open(name, flags))  # noqa: SIM115
    except OSError as error:
        raise StorageError(f"cannot read {path}: {_reason(error)}") from error
    try:
        _check(path, os.fstat(file.fileno()), most_bytes)  # it may have been replaced since
    except StorageError:
        file.close()
        raise
    return file


def read_json(path: str | Path, most_bytes: int = MOST_JSON) -> Any:
    """Read a JSON file. NaN, repeated keys, other encodings than UTF-8 and deep nesting are damage."""
    with open_regular(path, most_bytes) as file:
        try:
            return parse_json(file.read(most_bytes + 1))
        except (OSError, ValueError) as error:
            raise StorageError(f"{path} is damaged: {_reason(error)}") from error


def parse_json(text: bytes) -> Any:
    """Parse JSON strictly; a ValueError says what is wrong with it."""
    try:
        return json.loads(
            text.decode("utf-8"), parse_constant=_constant, object_pairs_hook=_without_repeats
        )
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"it is not UTF-8 at byte {error.start}") from error


def _constant(name: str) -> float:
    """Infinity is what a run has reached before its first validation; NaN is nothing."""
    if name == "NaN":
        raise ValueError("NaN is no number")
    return float(name)


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"{next(key for key in keys if keys.count(key) > 1)!r} is there twice")
    return found


def _check(path: str | Path, status: os.stat_result, most_bytes: int | None) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise StorageError(f"cannot read {path}: it is a folder")
    if not stat.S_ISREG(status.st_mode):
        raise StorageError(f"cannot read {path}: it must be a regular file, not a pipe or a device")
    if most_bytes is not None and status.st_size > most_bytes:
        rule = f"it has {status.st_size:,} bytes, more than {most_bytes:,}"
        raise StorageError(f"cannot read {path}: {rule}")


def _reason(error: Exception) -> str:
    """The first line of a message, without the path that an OSError repeats."""
    text = (error.strerror if isinstance(error, OSError) else None) or str(error)
    return next(iter(text.splitlines()), type(error).__name__)
