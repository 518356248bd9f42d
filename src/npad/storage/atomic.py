"""Folders that appear whole or not at all, whatever happens to the process or the disk."""

from __future__ import annotations

import os
import shutil
import stat
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
def atomic_folder(folder: Path) -> Iterator[Path]:
    """A folder to write to, which becomes `folder` once all of it is on disk. One of that name is replaced."""
    part = folder.with_name(f".{folder.name}.part")
    try:
        shutil.rmtree(part, ignore_errors=True)  # of a process that was killed
        part.mkdir(parents=True)
        yield part
        for path in (*part.rglob("*"), part):
            _flush(path)
        old = folder.with_name(
            f".{folder.name}.old"
        )  # which `sweep` brings back, should we be killed in between
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


def write_atomic(path: Path, text: str) -> None:
    """A file whose old or new content is there at any moment."""
    part = path.with_name(f".{path.name}.part")
    try:
        part.write_text(text, encoding="utf-8")
        _flush(part)
        os.replace(part, path)
        _flush(path.parent)
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


def recover(folder: Path) -> None:
    """Clear away what a process that was killed left unfinished."""
    for old in folder.glob(".*.old"):
        name = folder / old.name.removeprefix(".").removesuffix(".old")
        if not name.exists():
            os.replace(old, name)
    for rest in (path for end in ("part", "gone", "old") for path in folder.glob(f".*.{end}")):
        if rest.is_dir() and not rest.is_symlink():
            shutil.rmtree(rest, ignore_errors=True)
        else:
            rest.unlink(missing_ok=True)


@contextmanager
def exclusive_lock(lock: Path, what: str) -> Iterator[None]:
    """Hold a lock while this process works on something; the system frees it should we be killed.

    The lock file is removed at the end. A process that opened it before that would then lock a file
    that nobody else can find, so what was locked is compared with what has the name.
    """
    while True:
        handle = _open_lock(lock)
        try:
            _acquire(handle, lock, what)
            if not _is_named(handle, lock):
                continue
            try:
                yield
            finally:
                lock.unlink(missing_ok=True)
            return
        finally:
            os.close(handle)


def _open_lock(lock: Path) -> int:
    """Open or create a lock file; a pipe or a device of its name is refused without waiting."""
    flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NONBLOCK", 0)
    try:
        lock.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(lock, flags, 0o666)
    except OSError as error:
        raise StorageError(f"cannot write {lock}: {error.strerror}") from error
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise StorageError(f"cannot write {lock}: it is a pipe or a device; remove it")
    return handle


def _acquire(handle: int, lock: Path, what: str) -> None:
    try:
        if fcntl is not None:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        way_out = "wait for it, or choose another folder"
        raise InvalidInput(f"another process is {what}; {way_out}") from error
    except OSError as error:
        raise StorageError(f"cannot lock {lock}: {error.strerror}") from error


def _is_named(handle: int, path: Path) -> bool:
    """Whether an open file is still the one that has this name."""
    try:
        return os.path.samestat(os.fstat(handle), os.stat(path))
    except FileNotFoundError:
        return False


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
