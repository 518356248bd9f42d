"""The log of a run: one JSON object a line, in `log.jsonl`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from npad.errors import StorageError
from npad.training.folders import write_whole


def read(path: Path) -> list[dict[str, Any]]:
    """The records of a log; a last line that was cut off is left out."""
    records = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if path.is_file() else ():
        try:
            records.append(json.loads(line))
        except ValueError:
            break
    return records


def rewind(path: Path, update: int) -> None:
    """Forget what happened after an update, since it will happen again."""
    kept = [record for record in read(path) if record["update"] <= update]
    write_whole(path, "".join(json.dumps(record) + "\n" for record in kept))


def append(path: Path, record: dict[str, Any]) -> None:
    """Append a record to a JSON Lines file."""
    try:
        with open(path, "a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
    except OSError as error:
        raise StorageError(f"cannot write {path}: {error.strerror}") from error
