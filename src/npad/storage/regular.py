"""The one place that opens untrusted files, which may be damaged or hostile.

Opening a pipe blocks and reading a device such as /dev/zero never ends; both are refused before
they are opened. `Bounded` limits what a parser may read, and for how long. JSON is strict; a sealed
object carries the SHA-256 digest of its own content. Every failure is a one-line StorageError.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from npad.errors import NpadError, StorageError

MAX_JSON_BYTES = 1 << 26  # npad's own JSON files have a few kilobytes
DIGEST = "digest"  # the key of a sealed object's digest


def ensure_regular(path: str | Path, max_bytes: int | None = None) -> None:
    """Require a regular file, or a link to one, of at most `max_bytes`.

    Raises:
        StorageError: the path is a folder, a pipe or a device, does not exist, or is too large.
    """
    try:
        status = os.stat(path)
    except (OSError, ValueError) as error:
        raise StorageError(f"cannot read {path}: {_reason(error)}") from error
    _check_status(path, status, max_bytes)


def open_regular(path: str | Path, max_bytes: int | None = None) -> BinaryIO:
    """Open a regular file for reading bytes; never block, even if a pipe replaces it meanwhile.

    Raises:
        StorageError: as `ensure_regular`, or the file cannot be opened.
    """
    ensure_regular(path, max_bytes)
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    try:
        file = open(path, "rb", opener=lambda name, _: os.open(name, flags))  # noqa: SIM115
    except OSError as error:
        raise StorageError(f"cannot read {path}: {_reason(error)}") from error
    try:
        _check_status(path, os.fstat(file.fileno()), max_bytes)  # it may have been replaced
    except StorageError:
        file.close()
        raise
    return file


def open_stream(path: str | Path) -> BinaryIO:
    """Open what ends by itself: a regular file, a pipe, which is waited for, or a terminal.

    Raises:
        OSError: the path cannot be opened.
        StorageError: it is a device such as /dev/zero.
    """
    file = open(path, "rb")  # noqa: SIM115
    status = os.fstat(file.fileno())
    device = stat.S_ISBLK(status.st_mode) or stat.S_ISCHR(status.st_mode)
    if device and not file.isatty() and status.st_rdev != os.stat(os.devnull).st_rdev:
        file.close()
        raise StorageError(f"cannot read {path}: it is a device, which may never end")
    return file


class Bounded(io.BufferedIOBase):
    """A seekable file for a parser of untrusted content, which cannot make it read without end.

    A parser that goes beyond a limit gets a StorageError, however often it tries.

    Args:
        file: the content.
        seconds: from now, after which nothing more is read.
        max_read: bytes of one read.
        max_bytes: the last position that can be reached, such as in a compressed file.
    """

    def __init__(
        self,
        file: BinaryIO,
        seconds: float = math.inf,
        max_read: float = math.inf,
        max_bytes: float = math.inf,
    ) -> None:
        self.file, self.max_read, self.max_bytes = file, max_read, max_bytes
        self.seconds, self.deadline = seconds, time.monotonic() + seconds

    def read(self, size: int | None = -1) -> bytes:
        """Read at most `size` bytes; all by default."""
        self._ensure_in_time()
        size = -1 if size is None else size
        if self.max_read < math.inf and not 0 <= size <= self.max_read:
            raise StorageError(f"a header of {size:,} bytes, more than {self.max_read:,}")
        content = self.file.read(size)
        self._ensure_within(self.file.tell())
        return content

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._ensure_in_time()
        if whence == os.SEEK_SET:
            self._ensure_within(offset)
        return self.file.seek(offset, whence)

    def tell(self) -> int:
        return self.file.tell()

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def _ensure_in_time(self) -> None:
        if time.monotonic() > self.deadline:
            raise StorageError(f"it takes more than {self.seconds:g} seconds to read")

    def _ensure_within(self, position: int) -> None:
        if position > self.max_bytes:
            raise StorageError(f"it has more than {self.max_bytes:,} bytes")


def read_bytes(path: str | Path, max_bytes: int) -> bytes:
    """Read a regular file of at most `max_bytes`.

    Raises:
        StorageError: as `open_regular`, or reading fails.
    """
    with open_regular(path, max_bytes) as file:
        try:
            return file.read(max_bytes + 1)
        except OSError as error:
            raise StorageError(f"cannot read {path}: {_reason(error)}") from error


def read_json(path: str | Path, max_bytes: int = MAX_JSON_BYTES) -> dict[str, Any]:
    """Read a JSON object from a regular file of at most `max_bytes`.

    Raises:
        StorageError: the file cannot be read, is not strict JSON, or holds no object.
    """
    return _parse_object(read_bytes(path, max_bytes), str(path))


def _parse_object(text: bytes, name: str) -> dict[str, Any]:
    content = parse_json(text, name)
    if not isinstance(content, dict):
        raise StorageError(f"{name} is damaged: it holds no JSON object")
    return content


def parse_json(text: bytes, name: str) -> Any:
    """Parse JSON strictly: UTF-8, no NaN, no repeated keys, no deep nesting.

    Args:
        text: the encoded JSON.
        name: what an error calls it, such as a path.

    Raises:
        StorageError: `text` is not such JSON.
    """
    try:
        return json.loads(
            text.decode("utf-8"), parse_constant=_constant, object_pairs_hook=_unique_keys
        )
    except RecursionError as error:
        raise StorageError(f"{name} is damaged: it is nested too deeply") from error
    except UnicodeDecodeError as error:
        raise StorageError(f"{name} is damaged: it is not UTF-8 at byte {error.start}") from error
    except ValueError as error:
        raise StorageError(f"{name} is damaged: {_reason(error)}") from error


def file_digest(path: str | Path) -> str:
    """Return the SHA-256 of a regular file, as hexadecimal digits.

    Raises:
        StorageError: as `open_regular`, or reading fails.
    """
    with open_regular(path) as file:
        try:
            return hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]
        except OSError as error:
            raise StorageError(f"cannot read {path}: {_reason(error)}") from error


def digest(content: Any) -> str:
    """Return the SHA-256 of a value's canonical JSON: keys sorted, no spaces, ASCII."""
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


def seal(content: dict[str, Any]) -> dict[str, Any]:
    """Return the content with its digest added."""
    return content | {DIGEST: digest(content)}


def unseal(path: Path) -> dict[str, Any]:
    """Read a sealed JSON object and verify its digest, which stays in the result.

    Raises:
        StorageError: the file is unreadable, holds no JSON object, or was changed.
    """
    return unsealed(read_bytes(path, MAX_JSON_BYTES), str(path))


def unsealed(text: bytes, name: str) -> dict[str, Any]:
    """Parse a sealed JSON object, called `name` in errors, and verify its digest.

    Raises:
        StorageError: `text` holds no JSON object, or was changed.
    """
    sealed = _parse_object(text, name)
    content = {key: value for key, value in sealed.items() if key != DIGEST}
    try:
        sound = sealed.get(DIGEST) == digest(content)
    except RecursionError as error:
        raise StorageError(f"{name} is damaged: it is nested too deeply") from error
    if not sound:
        reason = "its digest does not match its content" if DIGEST in sealed else "it has no digest"
        raise StorageError(f"{name} is damaged or was edited: {reason}")
    return sealed


@contextmanager
def writing(path: object, *kinds: type[Exception]) -> Iterator[None]:
    """Raise errors of the system, and those of further kinds, as StorageError with the path."""
    caught: tuple[type[Exception], ...] = (OSError, *kinds)
    try:
        yield
    except caught as error:
        if isinstance(error, NpadError):
            raise
        reason = getattr(error, "strerror", None) or error
        raise StorageError(f"cannot write {path}: {reason}") from error


def _constant(name: str) -> float:
    """Accept Infinity, the best perplexity before the first validation, and refuse NaN."""
    if name == "NaN":
        raise ValueError("NaN is not a number")
    return float(name)


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) < len(pairs):
        keys = [key for key, _ in pairs]
        repeated = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"{repeated!r} is there twice")
    return content


def _check_status(path: str | Path, status: os.stat_result, max_bytes: int | None) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise StorageError(f"cannot read {path}: it is a folder")
    if not stat.S_ISREG(status.st_mode):
        raise StorageError(f"cannot read {path}: it must be a regular file, not a pipe or a device")
    if max_bytes is not None and status.st_size > max_bytes:
        rule = f"it has {status.st_size:,} bytes, more than {max_bytes:,}"
        raise StorageError(f"cannot read {path}: {rule}")


def _reason(error: Exception) -> str:
    """Return the first line of a message, without the path that an OSError repeats."""
    text = (error.strerror if isinstance(error, OSError) else None) or str(error)
    return next(iter(text.splitlines()), type(error).__name__)
