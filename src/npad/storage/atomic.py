"""Atomic writes and exclusive locks: a file or folder appears complete or not at all."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from safetensors import SafetensorError

from npad.errors import InvalidInput, StorageError
from npad.storage.regular import writing

try:
    import fcntl
except ImportError:  # Windows has no flock
    fcntl = None  # type: ignore[assignment]


@contextmanager
def atomic_folder(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder that becomes `folder` once its contents are on disk.

    An existing `folder` is replaced. The temporary folder is removed if the block raises.

    Raises:
        StorageError: the folder could not be written.
    """
    part = folder.with_name(f".{folder.name}.part")
    try:
        with writing(folder, SafetensorError):
            shutil.rmtree(part, ignore_errors=True)  # left by a process that was killed
            part.mkdir(parents=True)
            yield part
            for path in (*part.rglob("*"), part):
                _fsync(path)
            # A process killed between the two renames leaves only `old`, which `recover` restores.
            old = folder.with_name(f".{folder.name}.old")
            if folder.exists():
                os.replace(folder, old)
            os.replace(part, folder)
            _fsync(folder.parent)
            shutil.rmtree(old, ignore_errors=True)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def write_atomic(path: Path, content: str | bytes) -> None:
    """Write bytes or UTF-8 text atomically: the path always holds the old content or the new.

    Raises:
        StorageError: the file could not be written.
    """
    part = path.with_name(f".{path.name}.part")
    try:
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            part.write_bytes(content.encode() if isinstance(content, str) else content)
            _fsync(part)
            os.replace(part, path)
            _fsync(path.parent)
    except StorageError:
        with suppress(OSError):
            part.unlink()
        raise


def remove(folder: Path) -> None:
    """Remove a folder: rename it first, so that its name never holds a part of its contents."""
    grave = folder.with_name(f".{folder.name}.gone")
    shutil.rmtree(grave, ignore_errors=True)
    os.replace(folder, grave)
    shutil.rmtree(grave, ignore_errors=True)


def recover(folder: Path) -> None:
    """Restore replaced folders and delete temporary files left in `folder` by a killed process."""
    for old in folder.glob(".*.old"):
        original = folder / old.name.removeprefix(".").removesuffix(".old")
        if not original.exists():
            os.replace(old, original)
    for suffix in ("part", "gone", "old"):
        for leftover in folder.glob(f".*.{suffix}"):
            if leftover.is_dir() and not leftover.is_symlink():
                shutil.rmtree(leftover, ignore_errors=True)
            else:
                leftover.unlink(missing_ok=True)


@contextmanager
def exclusive_lock(
    lock: Path, activity: str, way_out: str = "wait for it, or choose another folder"
) -> Iterator[None]:
    """Hold a lock file; the operating system releases it if this process is killed.

    The lock file is removed at the end. A process that opened it earlier would then lock a file
    that no other process can find, so the locked file is compared with the one at the path.

    Args:
        lock: the path of the lock file.
        activity: what the holder is doing, for the error of a second process: "training in run".
        way_out: what the second process may do instead.

    Raises:
        InvalidInput: another process holds the lock.
        StorageError: the lock file cannot be written.
    """
    while True:
        handle = _open_lock(lock)
        try:
            _acquire(handle, lock, activity, way_out)
            if not _is_at_path(handle, lock):
                continue
            try:
                yield
            finally:
                lock.unlink(missing_ok=True)
            return
        finally:
            os.close(handle)


def _open_lock(lock: Path) -> int:
    """Open or create a lock file; refuse a pipe or a device without blocking."""
    flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NONBLOCK", 0)
    try:
        lock.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(lock, flags, 0o666)
    except FileExistsError as error:
        raise StorageError(f"{lock.parent} is a file, and must be a folder") from error
    except OSError as error:
        raise StorageError(f"cannot write {lock}: {error.strerror}") from error
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise StorageError(f"cannot write {lock}: it is a pipe or a device; remove it")
    return handle


def _acquire(handle: int, lock: Path, activity: str, way_out: str) -> None:
    try:
        if fcntl is not None:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise InvalidInput(f"another process is {activity}; {way_out}") from error
    except OSError as error:
        raise StorageError(f"cannot lock {lock}: {error.strerror}") from error


def _is_at_path(handle: int, path: Path) -> bool:
    """Return whether an open file is still the one at `path`."""
    try:
        return os.path.samestat(os.fstat(handle), os.stat(path))
    except FileNotFoundError:
        return False


def _fsync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
