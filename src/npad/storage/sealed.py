"""JSON files that carry the SHA-256 of their own content."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from npad.errors import StorageError
from npad.storage import regular
from npad.storage.regular import open_regular

DIGEST = "digest"


def digest(plain: Any) -> str:
    """Return the SHA-256 of a value's canonical JSON: keys sorted, no spaces, ASCII."""
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
        raise StorageError(f"{path} is damaged: it is nested too deeply") from error
    if not sound:
        reason = "its digest is not that of its content" if DIGEST in plain else "it has no digest"
        raise StorageError(f"{path} is damaged or was edited: {reason}")
    return plain


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object from a regular file of bounded size."""
    plain = regular.read_json(path)
    if not isinstance(plain, dict):
        raise StorageError(f"{path} is damaged: it holds no JSON object")
    return plain


def read_regular(path: Path, limit: int) -> bytes:
    """Read a regular file of at most `limit` bytes."""
    with open_regular(path, limit) as file:
        try:
            return file.read(limit + 1)
        except OSError as error:
            raise StorageError(f"cannot read {path}: {error.strerror}") from error


def parse(content: bytes, name: str) -> Any:
    """Parse strict UTF-8 JSON; `name` is what an error calls it."""
    try:
        return regular.parse_json(content)
    except ValueError as error:
        raise StorageError(f"{name} is damaged: {str(error).splitlines()[0]}") from error


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a regular file."""
    with open_regular(path) as file:
        try:
            return hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]
        except OSError as error:
            raise StorageError(f"cannot read {path}: {error.strerror}") from error
