"""Results of an experiment in a JSON-lines file, so that an interrupted experiment resumes."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from npad.errors import NpadError, StorageError
from npad.storage import jsonl
from npad.storage.atomic import write_atomic
from npad.storage.regular import parse_json, read_bytes

MAX_RECORD_BYTES = 1 << 30


class NotMeasured(NpadError):
    """A result is missing and no model is loaded to measure it with."""


class Record:
    """Results by key, stored in `results.jsonl`, one JSON object per line.

    A last line that was cut off when the program was killed is dropped and measured again.

    Raises:
        StorageError: a whole line is damaged, or the path is no regular file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.results: dict[tuple[Any, ...], Any] = {}
        if not os.path.lexists(path):
            return
        *lines, cut = read_bytes(path, MAX_RECORD_BYTES).split(b"\n")
        for number, line in enumerate(lines, start=1):
            try:
                entry = parse_json(line, f"{path}, line {number},")
                self.results[tuple(entry["key"])] = entry["value"]
            except (StorageError, KeyError, TypeError) as error:
                raise StorageError(
                    f"{path}, line {number}, is damaged; delete the line to measure it again"
                ) from error
        if cut:
            write_atomic(path, "".join(line.decode() + "\n" for line in lines))

    def damaged(self, key: tuple[Any, ...]) -> StorageError:
        """Return the error for a result of the wrong form."""
        return StorageError(
            f"{self.path} is damaged: the result of {key!r:.100} has another form; "
            "delete its line to measure it again"
        )

    def get_or_measure(self, key: tuple[Any, ...], measure: Callable[[], Any]) -> Any:
        """Return the result stored under `key`; measure and store it if it is missing."""
        if key not in self.results:
            value = json.loads(json.dumps(measure()))  # the same value as after reading the file
            jsonl.append(self.path, {"key": list(key), "value": value})
            self.results[key] = value
        return self.results[key]
