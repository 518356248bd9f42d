"""The training log, `log.jsonl`: one JSON object per line."""

from __future__ import annotations

import gzip
import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from npad.errors import StorageError
from npad.storage.atomic import write_atomic
from npad.storage.regular import parse_json, read_bytes, writing

MAX_LOG_BYTES = 1 << 30  # fifty million updates: about 200 bytes for every 10
PERPLEXITIES = ("perplexity", "valid_perplexity")  # every record has at least one of them


def read(path: Path) -> list[dict[str, Any]]:
    """Return the records of a log, or an empty list if the file does not exist.

    A last line that a kill cut off is skipped.

    Raises:
        StorageError: any other line is not a record; the message names it.
    """
    if not os.path.exists(path):
        return []
    *lines, last = read_bytes(path, MAX_LOG_BYTES).split(b"\n")
    records = [_record(line, f"{path}, line {i}") for i, line in enumerate(lines, start=1)]
    if last:
        with suppress(StorageError):  # cut off
            records.append(_record(last, f"{path}, line {len(lines) + 1}"))
    return records


def rewind(path: Path, update: int) -> None:
    """Drop the records after `update`, since a resumed run writes them again."""
    records = [record for record in read(path) if record["update"] <= update]
    write_atomic(path, "".join(json.dumps(record) + "\n" for record in records))


def append(path: Path, record: dict[str, Any]) -> None:
    """Append a record as one line of JSON; to a file .gz, as a gzip member of its own.

    Raises:
        StorageError: the file could not be written.
    """
    line = f"{json.dumps(record)}\n".encode()
    with writing(path), open(path, "ab") as file:
        file.write(gzip.compress(line) if path.suffix == ".gz" else line)


def _record(line: bytes, name: str) -> dict[str, Any]:
    """Parse a line of the log: a JSON object of numbers, with an update and a perplexity."""
    record = parse_json(line, name)
    way_out = "remove the line, or the log"
    if not isinstance(record, dict):
        raise StorageError(f"{name} is damaged: no JSON object; {way_out}")
    for key, value in record.items():
        if not isinstance(value, int | float):  # a bool is an int
            reason = f"{key!r:.40} must be a number, not {value!r:.40}"
            raise StorageError(f"{name} is damaged: {reason}; {way_out}")
    if type(record.get("update")) is not int or record["update"] < 1:
        reason = "'update' must be a whole number of at least 1"
        raise StorageError(f"{name} is damaged: {reason}, not {record.get('update')!r}; {way_out}")
    if not any(perplexity in record for perplexity in PERPLEXITIES):
        raise StorageError(f"{name} is damaged: it has no perplexity; {way_out}")
    return record
