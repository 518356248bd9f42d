"""Lines of text in and out: plain, gzip or xz, a file or a stream, UTF-8 and nothing else."""

from __future__ import annotations

import errno
import gzip
import lzma
import os
import secrets
import stat
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from npad.errors import InvalidInput, NpadError, StorageError

# A line of prose has some hundred bytes, a long paragraph some thousand. Without a bound, 400 kB of gzip can unpack to
# one line of 400 MB, which a tokenizer turns into many gigabytes.
LONGEST_LINE = 2**20  # bytes, its end included
PART_STEM = 200  # bytes of a file's name that its part's name begins with; a name may have 255
NO_SUCH_PATH = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG)
MAGIC = {b"\x1f\x8b": gzip.open, b"\xfd7zXZ\x00": lzma.open}


def read_lines(path: str | Path) -> Iterator[str]:
    """The lines of a file, or of standard input for `-`, without their ends. Only a line feed ends a line."""
    with open_input(path) as file:
        number = 0
        while line := _next(file, path, number):
            number += 1
            if number == 1:
                line = line.removeprefix(b"\xef\xbb\xbf")
            yield _decoded(line, path, number)


@contextmanager
def open_input(path: str | Path) -> Iterator[IO[bytes]]:
    """The bytes of a file, unpacked if they begin as gzip's or xz's do, whatever the file is called."""
    raw: Any
    try:
        raw = _stdin() if str(path) == "-" else open(path, "rb")  # noqa: SIM115
        start = raw.peek(6)
    except InvalidInput:
        raise
    except (OSError, ValueError) as error:
        raise InvalidInput(
            f"cannot read {display_name(path)}: {getattr(error, 'strerror', None) or error}"
        ) from error
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


def display_name(path: str | Path) -> str:
    """What to call a file in a message."""
    return "standard input" if str(path) == "-" else str(path)


@contextmanager
def reading_errors(path: str | Path, line: int | None = None) -> Iterator[None]:
    """Say in one line what went wrong while reading."""
    where = "" if line is None else f" after line {line}"
    try:
        yield
    except (EOFError, gzip.BadGzipFile, lzma.LZMAError, zlib.error) as error:
        raise InvalidInput(f"{display_name(path)} is damaged{where}: {error}") from error


def _next(file: IO[bytes], path: str | Path, number: int) -> bytes:
    """The bytes of the line after line `number`, its end included; none at the end of the file."""
    try:
        with reading_errors(path, number):
            line = file.readline(LONGEST_LINE + 1)
    except OSError as error:
        raise InvalidInput(
            f"cannot read {display_name(path)} after line {number}: {error.strerror}"
        ) from error
    if len(line) > LONGEST_LINE:
        raise InvalidInput(
            f"{display_name(path)}, line {number + 1} has more than {LONGEST_LINE:,} bytes, the most a line may have; "
            "split it, one sentence a line"
        )
    return line


def _decoded(line: bytes, path: str | Path, number: int) -> str:
    line = line.removesuffix(b"\n").removesuffix(b"\r")
    if b"\0" in line:
        raise InvalidInput(
            f"{display_name(path)}, line {number}: a zero byte; this is no text file"
        )
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        rule = f"byte {line[error.start]:#04x} at column {error.start + 1} is not UTF-8"
        raise InvalidInput(
            f"{display_name(path)}, line {number}: {rule}; convert the file first, for instance with iconv"
        ) from error


@contextmanager
def open_output(path: str | Path | None) -> Iterator[IO[str]]:
    """A place to write lines: a file, or standard output. A file appears when all of it is there.

    Until then the lines are in a file of their own, `FILE.<random>.part`, so that several writers of one file, or a
    writer that reads what it replaces, do not meet. What an interrupted writer leaves there is named in a note of the
    exception. A pipe or a device is written to as it is.
    """
    if path is None or str(path) == "-":
        yield sys.stdout
        return
    if not _is_plain(Path(path)):
        with _open(path, "w", path) as file, _storage_errors(path):
            yield file
        return
    with _replaced(
        Path(os.path.realpath(path))
    ) as file:  # what a link points to is replaced, not the link
        yield file


def _is_plain(path: Path) -> bool:
    """Whether `path` is a regular file, or free to become one."""
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        return True
    except (OSError, ValueError) as error:
        raise InvalidInput(
            f"cannot write {path}: {getattr(error, 'strerror', None) or error}"
        ) from error
    if stat.S_ISDIR(mode):
        raise InvalidInput(f"cannot write {path}: it is a folder")
    return stat.S_ISREG(mode)


@contextmanager
def _replaced(path: Path) -> Iterator[IO[str]]:
    """A new file that becomes `path` at the end. It stays under its own name if that fails, unless it is empty."""
    stem = os.fsencode(path.name)[:PART_STEM].decode(errors="ignore")
    part = path.with_name(f"{stem}.{secrets.token_hex(4)}.part")
    file = _open(part, "x", path)  # never a file that is there already
    try:
        with _storage_errors(path):
            with file:
                yield file
            os.replace(part, path)
    except BaseException as error:
        with suppress(OSError):
            if part.stat().st_size:
                error.add_note(f"what was written so far is in {part}")
            else:
                part.unlink()
        raise


def _open(path: str | Path, mode: str, name: str | Path) -> IO[str]:
    """Open for writing; a path that cannot exist is the user's mistake."""
    try:
        return open(path, mode, encoding="utf-8", newline="\n")
    except OSError as error:
        kind = InvalidInput if error.errno in NO_SUCH_PATH else StorageError
        raise kind(f"cannot write {name}: {error.strerror}") from error


@contextmanager
def _storage_errors(path: str | Path) -> Iterator[None]:
    """Name the file that could not be written."""
    try:
        yield
    except OSError as error:
        if isinstance(error, NpadError):
            raise
        raise StorageError(f"cannot write {path}: {error.strerror}") from error
