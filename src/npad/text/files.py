"""Read and write lines of UTF-8 text: files or streams, plain, gzip or xz."""

from __future__ import annotations

import errno
import gzip
import lzma
import os
import re
import secrets
import stat
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Self

from npad.errors import InvalidInput, StorageError
from npad.storage.regular import open_stream, writing
from npad.validation import brief, counted, nearest_path

# A line of prose has hundreds of bytes, a long paragraph thousands. Without a bound, 400 kB of gzip
# can unpack to one line of 400 MB, which a tokenizer turns into many gigabytes.
MAX_LINE_BYTES = 2**20  # line feed included
MAX_SKIPPED_BYTES = 2**26  # of a line that is too long; a longer one ends reading
MAX_STEM_BYTES = 200  # of a file's name, kept in its temporary file's name; a name may have 255
NO_SUCH_PATH = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG)
# What looks like the name of a file: no white space, and a separator of folders or a suffix.
FILE_NAME = re.compile(rf"\S*[{re.escape(os.sep)}/]\S*|\S*\.[A-Za-z][A-Za-z0-9]*")
MAGIC = {b"\x1f\x8b": gzip.open, b"\xfd7zXZ\x00": lzma.open}


def read_lines(path: str | Path) -> Iterator[str]:
    """Yield the lines of a file, or of standard input for `-`, without their line ends.

    Only a line feed, or a carriage return and a line feed, ends a line. A byte order mark is
    skipped.

    Raises:
        InvalidInput: the file cannot be read, is damaged or not UTF-8, or a line is too long.
    """
    for line in read_lines_or_errors(path):
        if isinstance(line, InvalidInput):
            raise line
        yield line


def read_lines_or_errors(path: str | Path) -> Iterator[str | InvalidInput]:
    """Yield lines as `read_lines` does, but an error in place of each line that is not text.

    Raises:
        InvalidInput: the file cannot be read or is damaged.
    """
    with open_input(path) as file:
        number = 0
        while line := _read_line(file, path, number):
            number += 1
            if len(line) > MAX_LINE_BYTES:
                name = f"{display_name(path)}, line {number}"
                rule = f"has more than {MAX_LINE_BYTES:,} bytes, the limit of a line"
                yield InvalidInput(f"{name} {rule}; split it, one sentence per line")
                skipped = 0
                while line and not line.endswith(b"\n"):
                    line = _read_line(file, path, number)
                    skipped += len(line)
                    if skipped > MAX_SKIPPED_BYTES:
                        rule = f"has more than {MAX_SKIPPED_BYTES:,} bytes"
                        raise InvalidInput(f"{name} {rule}; this is not a text file")
                continue
            if number == 1:
                line = line.removeprefix(b"\xef\xbb\xbf")
            try:
                text = _decode(line, path, number)
            except InvalidInput as error:
                yield error
            else:
                yield text


@dataclass(frozen=True)
class Lines:
    """The lines of a file, or a text, which is one line: what an argument of a command gives.

    Attributes:
        argument: the name of the file, `-` for standard input; or the text.
        is_file: whether it names a file.
    """

    argument: str
    is_file: bool = True

    @classmethod
    def of(cls, argument: str, is_text: bool = False) -> Self:
        """Return what an argument gives, by the rule of all commands.

        It is a file if it names one: it is `-`, or a file that exists, or looks like a file's name,
        without white space and with a suffix such as .txt or a separator of folders. Everything
        else is a text, and so is everything if `is_text`.

        Raises:
            InvalidInput: it looks like a file's name, and there is no such file.
        """
        if is_text or argument == "-":
            return cls(argument, is_file=not is_text)
        is_file = _exists(argument)
        if not is_file and FILE_NAME.fullmatch(argument):
            raise InvalidInput(f"{_missing(argument)}; give a text with --text")
        return cls(argument, is_file)

    @classmethod
    def of_file(cls, argument: str) -> Self:
        """Return the lines of a file, where one text would be too few.

        Raises:
            InvalidInput: there is no such file.
        """
        if argument != "-" and not _exists(argument):
            raise InvalidInput(_missing(argument))
        return cls(argument)

    def __iter__(self) -> Iterator[str]:
        return read_lines(self.argument) if self.is_file else iter([self.argument])

    def __str__(self) -> str:
        return display_name(self.argument) if self.is_file else brief(self.argument, 40)

    def count(self) -> int | None:
        """Return the number of lines; None if they can be read only once, as those of a pipe."""
        once = self.is_file and not Path(self.argument).is_file()
        return None if once else sum(1 for _ in self)


def _exists(name: str) -> bool:
    """Return whether a name is that of a file, a pipe or a device, and not of a folder."""
    try:
        return Path(name).exists() and not Path(name).is_dir()
    except (OSError, ValueError):  # too long for a path, or with a character that none has
        return False


def _missing(name: str) -> str:
    """Return that there is no such file, with the file that may be meant."""
    path = Path(name)
    if path.is_dir():
        return f"{name} is a folder, not a file of lines"
    near = nearest_path(path)
    hint = f" (did you mean {near}?)" if near else ""
    return f"there is no file {name}{hint}"


def read_pairs(source: Path | Lines, reference: Path | Lines) -> tuple[list[str], list[str]]:
    """Return the lines of sources and references, of which line i of both is a pair.

    Raises:
        InvalidInput: a file cannot be read, or their numbers of lines differ.
    """
    sides = [side if isinstance(side, Lines) else Lines(str(side)) for side in (source, reference)]
    if all(side == Lines("-") for side in sides):
        raise InvalidInput("sources and references cannot both be standard input")
    sources, references = map(list, sides)
    if len(sources) != len(references):
        lines = counted(len(sources), "line")
        counts = f"{sides[0]} has {lines} and {sides[1]} has {len(references):,}"
        raise InvalidInput(f"{counts}; line i of both must be a pair")
    return sources, references


@contextmanager
def open_input(path: str | Path) -> Iterator[IO[bytes]]:
    """Open a file, or standard input for `-`, for reading bytes; decompress gzip and xz.

    The compression is recognised by the first bytes, whatever the file's name.

    Raises:
        InvalidInput: the file cannot be read.
    """
    raw: Any
    try:
        raw = _stdin() if str(path) == "-" else open_stream(path)
        content = decompressed(raw)
    except StorageError as error:
        raise InvalidInput(str(error)) from error
    except InvalidInput:
        raise
    except (OSError, ValueError) as error:
        raise InvalidInput(
            f"cannot read {display_name(path)}: {getattr(error, 'strerror', None) or error}"
        ) from error
    try:
        yield content
    finally:
        if str(path) != "-":
            raw.close()


def decompressed(raw: Any) -> Any:
    """Return a buffered file, or what decompresses it, recognised by its first bytes."""
    start = raw.peek(6)
    openers = (opener for magic, opener in MAGIC.items() if start.startswith(magic))
    decompress: Any = next(openers, None)
    return decompress(raw, "rb") if decompress else raw


def _stdin() -> Any:
    if sys.stdin is None:
        raise InvalidInput("cannot read standard input: it is closed")
    return sys.stdin.buffer


def display_name(path: str | Path) -> str:
    """Return what error messages call a file: its path, or standard input."""
    return "standard input" if str(path) == "-" else str(path)


@contextmanager
def reading_errors(path: str | Path, line: int | None = None) -> Iterator[None]:
    """Raise errors of decompression as InvalidInput, with the file and the last line read."""
    place = "" if line is None else f" after line {line}"
    try:
        yield
    except (EOFError, gzip.BadGzipFile, lzma.LZMAError, zlib.error) as error:
        raise InvalidInput(f"{display_name(path)} is damaged{place}: {error}") from error


def _read_line(file: IO[bytes], path: str | Path, number: int) -> bytes:
    """Read the line after line `number`, with its line end; empty at the end of the file.

    Of a line that is too long, only the first `MAX_LINE_BYTES` + 1 bytes are read.
    """
    try:
        with reading_errors(path, number):
            return file.readline(MAX_LINE_BYTES + 1)
    except OSError as error:
        raise InvalidInput(
            f"cannot read {display_name(path)} after line {number}: {error.strerror}"
        ) from error


def _decode(line: bytes, path: str | Path, number: int) -> str:
    line = line.removesuffix(b"\n").removesuffix(b"\r")
    if b"\0" in line:
        raise InvalidInput(
            f"{display_name(path)}, line {number}: a zero byte; this is not a text file"
        )
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        rule = f"byte {line[error.start]:#04x} at column {error.start + 1} is not UTF-8"
        way_out = "convert the file first, for instance with iconv"
        raise InvalidInput(f"{display_name(path)}, line {number}: {rule}; {way_out}") from error


@contextmanager
def open_output(path: str | Path | None) -> Iterator[IO[str]]:
    """Open a file for writing text, or standard output for None or `-`.

    The file is replaced when the block ends. Until then the text is in a temporary file,
    `FILE.<random>.part`, so that several writers of one file, or a writer that reads the file it
    replaces, do not interfere. If the block raises, the temporary file is kept, unless it is empty,
    and a note of the exception names it. A pipe or a device is written to directly.

    Raises:
        InvalidInput: no file can have this path.
        StorageError: the file could not be written.
    """
    if path is None or str(path) == "-":
        yield sys.stdout
        return
    if not _is_replaceable(Path(path)):
        with _open(path, "w", path) as file, writing(path):
            yield file
        return
    target = Path(os.path.realpath(path))  # replace the file a link points to, not the link
    with _replacement(target) as file:
        yield file


def _is_replaceable(path: Path) -> bool:
    """Return whether `path` is a regular file or does not exist yet."""
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
def _replacement(path: Path) -> Iterator[IO[str]]:
    """Open a temporary file that becomes `path` at the end, and is kept on failure if not empty."""
    stem = os.fsencode(path.name)[:MAX_STEM_BYTES].decode(errors="ignore")
    part = path.with_name(f"{stem}.{secrets.token_hex(4)}.part")
    file = _open(part, "x", path)  # never overwrite an existing file
    try:
        with writing(path):
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
    """Open for writing; a path that cannot exist is InvalidInput, other failures StorageError."""
    try:
        return open(path, mode, encoding="utf-8", newline="\n")
    except OSError as error:
        kind = InvalidInput if error.errno in NO_SUCH_PATH else StorageError
        raise kind(f"cannot write {name}: {error.strerror}") from error
