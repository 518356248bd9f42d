"""Results of an experiment in a JSON-lines file, so that an interrupted experiment resumes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from npad.errors import NpadError, StorageError
from npad.storage import jsonl
from npad.storage.atomic import write_atomic


class NotMeasured(NpadError):
    """A result is missing and no model is loaded to measure it with."""


class Record:
    """Results by key, stored in `results.jsonl`, one JSON object per line.

    A last line that was cut off when the program was killed is dropped and measured again.

    Raises:
        StorageError: a line before the last one is damaged.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True) if path.is_file() else []
        self.results: dict[tuple[Any, ...], Any] = {}
        for number, line in enumerate(lines, start=1):
            try:
                entry = json.loads(line if line.endswith("\n") else "")
                self.results[tuple(entry["key"])] = entry["value"]
            except (ValueError, KeyError, TypeError) as error:
                if number < len(lines):
                    raise StorageError(
                        f"{path}, line {number}, is damaged; delete the line to measure it again"
                    ) from error
                write_atomic(path, "".join(lines[:-1]))

    def get_or_measure(self, key: tuple[Any, ...], measure: Callable[[], Any]) -> Any:
        """Return the result stored under `key`; measure and store it if it is missing."""
        if key not in self.results:
            value = json.loads(json.dumps(measure()))  # the same value as after reading the file
            jsonl.append(self.path, {"key": list(key), "value": value})
            self.results[key] = value
        return self.results[key]
