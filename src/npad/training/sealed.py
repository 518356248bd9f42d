"""JSON files that carry the SHA-256 of their own content; reading of regular files only."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from io import BufferedReader
from pathlib import Path
from typing import Any

from npad.errors import StorageError

DIGEST = "digest"
LIMIT = 16 << 20  # bytes of a JSON file; npad writes a few thousand
# A pipe is not waited for. The flags are those that the system has.
NOT_BLOCKING = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)


def digest(plain: Any) -> str:
    """SHA-256 of a value's canonical JSON: keys sorted, no spaces, ASCII."""
    canonical = json.dumps(plain, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


def seal(plain: dict[str, Any]) -> dict[str, Any]:
    """Add the digest of the content."""
    return plain | {DIGEST: digest(plain)}


def unseal(path: Path) -> dict[str, Any]:
    """Read a sealed JSON object and verify its digest; the digest stays in it.

    Raises:
        StorageError: the file is unreadable, no JSON object, or not as it was written.
    """
    plain = read_json(path)
    try:
        sound = plain.get(DIGEST) == digest({key: plain[key] for key in plain if key != DIGEST})
    except RecursionError as error:
        raise StorageError(f"{path} is damaged: it nests too deeply") from error
    if not sound:
        reason = "its digest is not that of its content" if DIGEST in plain else "it has no digest"
        raise StorageError(f"{path} is damaged or was edited: {reason}")
    return plain


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object from a regular file of at most LIMIT bytes."""
    plain = parse(read_regular(path, LIMIT), str(path))
    if not isinstance(plain, dict):
        raise StorageError(f"{path} is damaged: it holds no JSON object")
    return plain


def parse(content: bytes, name: str) -> Any:
    """Parse UTF-8 JSON; `name` is what an error calls it."""
    try:
        return json.loads(content.decode())
    except RecursionError as error:
        raise StorageError(f"{name} is damaged: it nests too deeply") from error
    except ValueError as error:
        raise StorageError(f"{name} is damaged: {str(error).splitlines()[0]}") from error


def read_regular(path: Path, limit: int) -> bytes:
    """Read a regular file of at most `limit` bytes."""
    with open_regular(path) as file:
        try:
            content = file.read(limit + 1)
        except OSError as error:
            raise StorageError(f"cannot read {path}: {error.strerror}") from error
    if len(content) > limit:
        raise StorageError(f"cannot read {path}: it is larger than {limit:,} bytes")
    return content


def open_regular(path: Path) -> BufferedReader:
    """Open a regular file, or a link to one; a pipe or a device is refused without waiting."""
    try:
        handle = os.open(path, os.O_RDONLY | NOT_BLOCKING)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise StorageError(f"cannot read {path}: {reason}") from error
    mode = os.fstat(handle).st_mode
    if not stat.S_ISREG(mode):
        os.close(handle)
        kind = "a folder" if stat.S_ISDIR(mode) else "a pipe or a device"
        raise StorageError(f"cannot read {path}: it is {kind}, not a file")
    return open(handle, "rb")


def file_digest(path: Path) -> str:
    """SHA-256 of a regular file."""
    with open_regular(path) as file:
        try:
            return hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise StorageError(f"cannot read {path}: {error.strerror}") from error
