"""The log of a run: one JSON object a line, in `log.jsonl`."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from npad.errors import StorageError
from npad.storage.atomic import write_atomic
from npad.storage.sealed import parse, read_regular

LIMIT = 1 << 30  # bytes: fifty million updates
MEASURES = ("perplexity", "valid_perplexity")


def read(path: Path) -> list[dict[str, Any]]:
    """Read the records of a log; none if there is no file.

    A last line that was cut off, as by a kill, is left out.

    Raises:
        StorageError: another line is no record; the message names it.
    """
    if not os.path.exists(path):
        return []
    *lines, last = read_regular(path, LIMIT).split(b"\n")
    records = [_record(line, f"{path}, line {i}") for i, line in enumerate(lines, start=1)]
    if last:
        with suppress(StorageError):  # torn
            records.append(_record(last, f"{path}, line {len(lines) + 1}"))
    return records


def rewind(path: Path, update: int) -> None:
    """Forget what happened after an update, since it will happen again."""
    kept = [record for record in read(path) if record["update"] <= update]
    write_atomic(path, "".join(json.dumps(record) + "\n" for record in kept))


def append(path: Path, record: dict[str, Any]) -> None:
    try:
        with open(path, "a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
    except OSError as error:
        raise StorageError(f"cannot write {path}: {error.strerror}") from error


def _record(line: bytes, name: str) -> dict[str, Any]:
    """Parse a line of the log: a JSON object of numbers, with an update and a perplexity."""
    record = parse(line, name)
    way_out = "remove the line, or the log"
    if not isinstance(record, dict):
        raise StorageError(f"{name} is damaged: no JSON object; {way_out}")
    for key, value in record.items():
        if not isinstance(value, int | float):  # or a bool
            reason = f"{key!r:.40} must be a number, not {value!r:.40}"
            raise StorageError(f"{name} is damaged: {reason}; {way_out}")
    if type(record.get("update")) is not int or record["update"] < 1:
        reason = "'update' must be a whole number of at least 1"
        raise StorageError(f"{name} is damaged: {reason}, not {record.get('update')!r}; {way_out}")
    if not any(measure in record for measure in MEASURES):
        raise StorageError(f"{name} is damaged: it has no perplexity; {way_out}")
    return record
