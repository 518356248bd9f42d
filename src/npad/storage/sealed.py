"""JSON objects that carry the SHA-256 digest of their own content."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from npad.errors import StorageError
from npad.storage.regular import read_json

DIGEST = "digest"  # the key of the digest


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
    sealed = read_json(path)
    content = {key: value for key, value in sealed.items() if key != DIGEST}
    try:
        sound = sealed.get(DIGEST) == digest(content)
    except RecursionError as error:
        raise StorageError(f"{path} is damaged: it is nested too deeply") from error
    if not sound:
        reason = "its digest is not that of its content" if DIGEST in sealed else "it has no digest"
        raise StorageError(f"{path} is damaged or was edited: {reason}")
    return sealed
