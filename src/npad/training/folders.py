"""Folders that appear whole or not at all, whatever happens to the process or the disk."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from safetensors import SafetensorError

from npad.errors import StorageError


@contextmanager
def whole_folder(folder: Path) -> Iterator[Path]:
    """A folder to write to, which becomes `folder` once all of it is on disk. One that is there stays as it is."""
    part = folder.with_name(f".{folder.name}.part")
    try:
        shutil.rmtree(part, ignore_errors=True)  # of a process that was killed
        part.mkdir(parents=True)
        yield part
        for path in (*part.rglob("*"), part):
            _flush(path)
        if not folder.exists():
            os.replace(part, folder)
            _flush(folder.parent)
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
    for rest in (*folder.glob(".*.part"), *folder.glob(".*.gone")):
        if rest.is_dir():
            shutil.rmtree(rest, ignore_errors=True)
        else:
            rest.unlink(missing_ok=True)


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
