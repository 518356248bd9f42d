"""Folders that appear whole or not at all, whatever happens to the process or the disk."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from safetensors import SafetensorError

from npad.errors import InvalidInput, StorageError

try:
    import fcntl
except ImportError:  # no such lock on this system
    fcntl = None  # type: ignore[assignment]


@contextmanager
def whole_folder(folder: Path) -> Iterator[Path]:
    """A folder to write to, which becomes `folder` once all of it is on disk. One of that name is replaced."""
    part = folder.with_name(f".{folder.name}.part")
    try:
        shutil.rmtree(part, ignore_errors=True)  # of a process that was killed
        part.mkdir(parents=True)
        yield part
        for path in (*part.rglob("*"), part):
            _flush(path)
        old = folder.with_name(f".{folder.name}.old")  # which `sweep` brings back, should we be killed in between
        if folder.exists():
            os.replace(folder, old)
        os.replace(part, folder)
        _flush(folder.parent)
        shutil.rmtree(old, ignore_errors=True)
    except (OSError, SafetensorError) as error:
        if isinstance(error, StorageError):
            raise
        reason = (error.strerror if isinstance(error, OSError) else None) or error
        raise StorageError(f"cannot write {folder}: {reason}") from error
    finally:
        shutil.rmtree(part, ignore_errors=True)


def write_whole(path: Path, text: str) -> None:
    """A file whose old or new content is there at any moment."""
    part = path.with_name(f".{path.name}.part")
    try:
        part.write_text(text, encoding="utf-8")
        _flush(part)
        os.replace(part, path)
    except OSError as error:
        with suppress(OSError):
            part.unlink()
        raise StorageError(f"cannot write {path}: {error.strerror}") from error


def remove(folder: Path) -> None:
    """Take a folder away at once, then its contents: half of one is never seen under its name."""
    grave = folder.with_name(f".{folder.name}.gone")
    shutil.rmtree(grave, ignore_errors=True)
    os.replace(folder, grave)
    shutil.rmtree(grave, ignore_errors=True)


def sweep(folder: Path) -> None:
    """Clear away what a process that was killed left unfinished."""
    for old in folder.glob(".*.old"):
        name = folder / old.name.removeprefix(".").removesuffix(".old")
        if not name.exists():
            os.replace(old, name)
    for rest in (path for end in ("part", "gone", "old") for path in folder.glob(f".*.{end}")):
        if rest.is_dir():
            shutil.rmtree(rest, ignore_errors=True)
        else:
            rest.unlink(missing_ok=True)


@contextmanager
def alone(lock: Path, what: str) -> Iterator[None]:
    """Hold a lock for as long as this process works on something; the system frees it should we be killed."""
    try:
        lock.parent.mkdir(parents=True, exist_ok=True)
        file = open(lock, "w")  # noqa: SIM115
    except OSError as error:
        raise StorageError(f"cannot write {lock}: {error.strerror}") from error
    with file:
        try:
            if fcntl is not None:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise InvalidInput(f"another process is {what}; wait for it, or choose another folder") from error
        try:
            yield
        finally:
            lock.unlink(missing_ok=True)


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
