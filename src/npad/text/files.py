"""Lines of text in and out: plain, gzip or xz, a file or a stream, UTF-8 and nothing else."""

from __future__ import annotations

import gzip
import lzma
import os
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from npad.errors import InvalidInput, StorageError

MAGIC = {b"\x1f\x8b": gzip.open, b"\xfd7zXZ\x00": lzma.open}


def lines(path: str | Path) -> Iterator[str]:
    """The lines of a file, or of standard input for `-`, without their ends. Only a line feed ends a line."""
    with opened(path) as file:
        number = 0
        while line := _next(file, path, number):
            number += 1
            if number == 1:
                line = line.removeprefix(b"\xef\xbb\xbf")
            yield _decoded(line, path, number)


@contextmanager
def opened(path: str | Path) -> Iterator[IO[bytes]]:
    """The bytes of a file, unpacked if they begin as gzip's or xz's do, whatever the file is called."""
    raw: Any
    try:
        raw = _stdin() if str(path) == "-" else open(path, "rb")  # noqa: SIM115
        start = raw.peek(6)
    except OSError as error:
        raise InvalidInput(f"cannot read {shown(path)}: {error.strerror}") from error
    try:
        unpack: Any = next((how for magic, how in MAGIC.items() if start.startswith(magic)), None)
        yield unpack(raw, "rb") if unpack else raw
    finally:
        if str(path) != "-":
            raw.close()


def _stdin() -> Any:
    if sys.stdin is None:
        raise InvalidInput("cannot read standard input: it is closed")
    return sys.stdin.buffer


def shown(path: str | Path) -> str:
    """What to call a file in a message."""
    return "standard input" if str(path) == "-" else str(path)


@contextmanager
def plain_errors(path: str | Path, line: int | None = None) -> Iterator[None]:
    """Say in one line what went wrong while reading."""
    where = "" if line is None else f" after line {line}"
    try:
        yield
    except (EOFError, gzip.BadGzipFile, lzma.LZMAError, zlib.error) as error:
        raise InvalidInput(f"{shown(path)} is damaged{where}: {error}") from error


def _next(file: IO[bytes], path: str | Path, number: int) -> bytes:
    try:
        with plain_errors(path, number):
            return file.readline()
    except OSError as error:
        raise InvalidInput(f"cannot read {shown(path)} after line {number}: {error.strerror}") from error


def _decoded(line: bytes, path: str | Path, number: int) -> str:
    line = line.removesuffix(b"\n").removesuffix(b"\r")
    if b"\0" in line:
        raise InvalidInput(f"{shown(path)}, line {number}: a zero byte; this is no text file")
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        rule = f"byte {line[error.start]:#04x} at column {error.start + 1} is not UTF-8"
        raise InvalidInput(
            f"{shown(path)}, line {number}: {rule}; convert the file first, for instance with iconv"
        ) from error


@contextmanager
def written(path: str | Path | None) -> Iterator[IO[str]]:
    """A place to write lines: a file, or standard output. A file appears when all of it is there.

    Until then what was written so far is in `FILE.part`, where it stays if the program is killed. A pipe or a device is
    written to as it is.
    """
    if path is None or str(path) == "-":
        yield sys.stdout
        return
    path = Path(path).resolve()
    if path.is_dir():
        raise InvalidInput(f"cannot write {path}: it is a folder")
    plain = path.is_file() or not path.exists()
    part = Path(f"{path}.part") if plain else path
    try:
        with open(part, "w", encoding="utf-8", newline="\n") as file:
            yield file
        if plain:
            os.replace(part, path)
    except OSError as error:
        kept = f"; what there is so far is in {part}" if plain and part.exists() else ""
        raise StorageError(f"cannot write {path}: {error.strerror}{kept}") from error
