"""Measured values in a file of JSON lines: looked up, or measured and appended."""

from __future__ import annotations

import gzip
import io
import json
import lzma
import math
import os
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from npad.errors import NpadError, StorageError
from npad.storage import jsonl
from npad.storage.atomic import write_atomic
from npad.storage.regular import parse_json, read_bytes

MAX_RECORD_BYTES = 1 << 30

Key = tuple[Any, ...]  # of values that JSON has
Form = Any  # a predicate; [form] for a list; a tuple or a dict of forms


def has_form(value: Any, form: Form) -> bool:
    """Return whether a value from a file has a form: {"nll": is_number, "pairs": [(f, g)]}."""
    if isinstance(form, dict):
        matches = isinstance(value, dict) and value.keys() == form.keys()
        return matches and all(has_form(value[name], form[name]) for name in form)
    if isinstance(form, tuple):
        matches = isinstance(value, list) and len(value) == len(form)
        return matches and all(map(has_form, value, form))
    if isinstance(form, list):
        return isinstance(value, list) and all(has_form(entry, form[0]) for entry in value)
    return bool(form(value))


def is_number(value: Any) -> bool:
    """Return whether a value from a file is a finite number."""
    return type(value) in (int, float) and math.isfinite(value)


def is_text(value: Any) -> bool:
    """Return whether a value from a file is a text."""
    return isinstance(value, str)


class NotMeasured(NpadError):
    """A value is missing and there is nothing to measure it with."""


class Record:
    """Values by key, one JSON object per line, so that an interrupted run resumes.

    Lines are appended as soon as they are measured. A last line that was cut off when the program
    was killed is measured again.

    Args:
        path: FILE.jsonl; FILE.jsonl.gz, whose lines are gzip members of their own; FILE.jsonl.xz,
            which is only read; or None to keep the values in memory.
        before: called with the key before each measurement; it may refuse by an exception.

    Attributes:
        results: the values by key.

    Raises:
        StorageError: a whole line is damaged, or the path is not a regular file.
    """

    def __init__(
        self, path: Path | None = None, before: Callable[[Key], object] = lambda key: None
    ) -> None:
        self.path, self.before = path, before
        self.results: dict[Key, Any] = {}
        self._cut = False  # whether the file ends with a part of a line
        for number, line in enumerate(self._lines(), start=1):
            try:
                entry = parse_json(line, f"{path}, line {number},")
                self.results[tuple(entry["key"])] = entry["value"]
            except (StorageError, KeyError, TypeError) as error:
                raise StorageError(
                    f"{path}, line {number}, is damaged; delete the line to measure it again"
                ) from error

    def row(
        self,
        key: Key,
        measure: Callable[[], Any] | None = None,
        valid: Callable[[Any], bool] = lambda value: True,
    ) -> Any:
        """Return the value of a key; measure and store it if it is missing.

        Args:
            key: what the value is of.
            measure: returns the value; None if it cannot be measured.
            valid: whether a value has the form that it must have.

        Raises:
            NotMeasured: the value is missing and cannot be measured.
            StorageError: the value has another form, or cannot be stored.
        """
        if key not in self.results:
            if measure is None:
                raise NotMeasured(
                    f"{self.path} has no result for {key}; measuring it needs a model"
                )
            self.before(key)
            value = json.loads(json.dumps(measure()))  # the same value as after reading the file
            self._append(key, value)
            self.results[key] = value
        if not valid(self.results[key]):
            raise StorageError(
                f"{self.path} is damaged: the result of {key!r:.100} has another form; "
                "delete its line to measure it again"
            )
        return self.results[key]

    def save(self, path: Path) -> None:
        """Write all values into another file; .xz takes the least space."""
        lines = "".join(f"{json.dumps(_entry(*item))}\n" for item in self.results.items()).encode()
        if path.suffix == ".xz":
            lines = lzma.compress(lines, preset=9 | lzma.PRESET_EXTREME)
        write_atomic(path, gzip.compress(lines) if path.suffix == ".gz" else lines)

    def _append(self, key: Key, value: Any) -> None:
        if self.path is not None:
            if self._cut:
                self.save(self.path)
                self._cut = False
            jsonl.append(self.path, _entry(key, value))

    def _lines(self) -> list[bytes]:
        """Return the whole lines of the file."""
        if self.path is None or not os.path.lexists(self.path):
            return []
        content = read_bytes(self.path, MAX_RECORD_BYTES)
        if self.path.suffix == ".xz":
            content = lzma.decompress(content)
        elif self.path.suffix == ".gz":
            content = self._members(content)
        *lines, rest = content.split(b"\n")
        self._cut |= bool(rest)
        return lines

    def _members(self, content: bytes) -> bytes:
        """Decompress gzip members, up to one that was cut off."""
        parts = []
        try:
            with gzip.open(io.BytesIO(content)) as file:
                while part := file.read1(1 << 20):
                    parts.append(part)
        except (EOFError, zlib.error, gzip.BadGzipFile):
            self._cut = True
        return b"".join(parts)


def _entry(key: Key, value: Any) -> dict[str, Any]:
    return {"key": list(key), "value": value}
