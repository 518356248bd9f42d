"""What has been measured, one JSON object a line: an experiment that was stopped goes on from there."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from npad.errors import NpadError, StorageError
from npad.storage import jsonl as log
from npad.storage.atomic import write_atomic


class NotMeasured(NpadError):
    """Asked of a record for what it does not hold, where nothing can be measured."""


class Record:
    """Results by key, in `results.jsonl`. A line that was cut off when the program was killed is measured again."""

    def __init__(self, path: Path) -> None:
        self.path = path
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True) if path.is_file() else []
        self.known: dict[tuple[Any, ...], Any] = {}
        for number, line in enumerate(lines, start=1):
            try:
                one = json.loads(line if line.endswith("\n") else "")
                self.known[tuple(one["key"])] = one["value"]
            except (ValueError, KeyError, TypeError) as error:
                if number < len(lines):
                    raise StorageError(
                        f"{path}, line {number}, is damaged; take it out to measure it again"
                    ) from error
                write_atomic(path, "".join(lines[:-1]))

    def once(self, key: tuple[Any, ...], measure: Callable[[], Any]) -> Any:
        """The result under a key, measured if need be."""
        if key not in self.known:
            value = json.loads(json.dumps(measure()))  # as it will be read again
            log.append(self.path, {"key": list(key), "value": value})
            self.known[key] = value
        return self.known[key]
