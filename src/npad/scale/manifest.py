"""Which part of an output is finished, so that a driver that was killed continues.

`OUTPUT.part` holds what is written so far, in the order of the input. `OUTPUT.manifest.jsonl` has a
header, which says what is being written, and a line per finished unit: its first text and their
number, its bytes in the part file and their SHA-256. Each line is sealed by a digest of its own. A
line is added after the bytes, so whatever was cut off is found by its checksum, dropped and
translated again. Both files are gone when the output is complete.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from npad.errors import InvalidInput, StorageError
from npad.storage.atomic import exclusive_lock, write_atomic
from npad.storage.regular import ensure_regular, seal, unsealed, writing

FORMAT = 2  # npad 0.3 wrote 1, whose lines had no digests; it is refused
COUNTS = ("first", "texts", "bytes", "failed", "near_ties")  # of an entry
MAX_ENTRY_BYTES = 1 << 16  # a line has some 300 bytes
SHOWN = 60  # characters of a setting that an error shows


@dataclass
class Manifest:
    """The finished part of an output.

    Attributes:
        output: the file that will be complete.
        identity: what decides the output: digests of input and model, the decoder, limits, format.
        total: texts of the complete output.
        texts: texts that are finished.
        failed: finished texts that have no translation.
        near_ties: finished texts with a near-tie.
    """

    output: Path
    identity: Mapping[str, str]
    total: int
    texts: int = 0
    failed: int = 0
    near_ties: int = 0
    _part: BinaryIO = field(init=False, repr=False)
    _journal: BinaryIO = field(init=False, repr=False)

    @property
    def part(self) -> Path:
        return self.output.with_name(f"{self.output.name}.part")

    @property
    def journal(self) -> Path:
        return self.output.with_name(f"{self.output.name}.manifest.jsonl")

    def append(self, content: bytes, texts: int, failed: int = 0, near_ties: int = 0) -> None:
        """Add the content of a finished unit."""
        entry = {
            "first": self.texts,
            "texts": texts,
            "bytes": len(content),
            "sha256": hashlib.sha256(content).hexdigest(),
            "failed": failed,
            "near_ties": near_ties,
        }
        self._part.write(content)
        self._part.flush()
        self._journal.write(json.dumps(seal(entry)).encode() + b"\n")
        self._journal.flush()
        self._count(entry)

    def _count(self, entry: Mapping[str, Any]) -> None:
        self.texts += entry["texts"]
        self.failed += entry["failed"]
        self.near_ties += entry["near_ties"]

    @contextmanager
    def _opened(self) -> Iterator[None]:
        """Open both files at the end of what is sound; start over if there is nothing."""
        if self.part.exists() and not self.journal.exists() and self.part.stat().st_size:
            raise InvalidInput(
                f"{self.part} is in the way: it belongs to no output that npad began; move it, or "
                "choose another output"
            )
        if not (self.journal.exists() and self.part.exists()):
            header = seal({"npad": FORMAT, "identity": dict(self.identity)})
            self.part.write_bytes(b"")
            write_atomic(self.journal, json.dumps(header) + "\n")
        for path in (self.journal, self.part):
            ensure_regular(path)
        with open(self.part, "r+b") as self._part, open(self.journal, "r+b") as self._journal:
            self._ensure_same()
            self._part.truncate(self._sound_end())
            self._part.seek(0, os.SEEK_END)
            self._journal.truncate()  # after the last sound entry
            yield
            self._ensure_complete()
            os.fsync(self._part.fileno())

    def _ensure_same(self) -> None:
        """Refuse to continue an output of another input, model or decoder."""
        way_out = f"to start over, delete {self.journal} and {self.part}"
        line = self._journal.readline(MAX_ENTRY_BYTES)
        try:
            header = unsealed(line, f"{self.journal}, line 1,")
        except StorageError as error:
            old = line.startswith(b'{"npad": 1,')
            reason = f"{self.output} was begun by an earlier version of npad" if old else str(error)
            raise StorageError(f"{reason}; {way_out}") from error
        if header.get("npad") != FORMAT or not line.endswith(b"\n"):
            raise StorageError(f"{self.journal} is damaged or of another version; {way_out}")
        begun = header.get("identity", {})
        for name, value in self.identity.items():
            if begun.get(name) != value:
                raise InvalidInput(
                    f"{self.output} was begun with {name} {str(begun.get(name))[:SHOWN]}, not "
                    f"{value[:SHOWN]}; use that, or another output; {way_out}"
                )

    def _sound_end(self) -> int:
        """Read the entries whose content is there; return its end, and stay after the last one.

        Raises:
            StorageError: a complete line was changed, or is not the one after the line before it.
        """
        end, number = 0, 2
        while True:
            place = self._journal.tell()
            line = self._journal.readline(MAX_ENTRY_BYTES)
            if line and (line.endswith(b"\n") or len(line) == MAX_ENTRY_BYTES):
                entry = self._entry(line, number)
                content = self._part.read(entry["bytes"])
                if hashlib.sha256(content).hexdigest() == entry["sha256"]:
                    self._count(entry)
                    end, number = end + len(content), number + 1
                    continue
            self._journal.seek(place)  # the end, or cut off
            return end

    def _entry(self, line: bytes, number: int) -> dict[str, Any]:
        """Return the entry of a unit that begins where the entries before it end."""
        name = f"{self.journal}, line {number},"
        way_out = (
            f"delete this line and those after it, and the same command continues there; or delete "
            f"{self.journal} and {self.part} to start over"
        )
        try:
            entry = unsealed(line, name)
        except StorageError as error:
            raise StorageError(f"{error}; {way_out}") from error
        counts = [entry.get(key) for key in COUNTS]
        if any(type(count) is not int or count < 0 for count in counts):
            rule = f"it must have the numbers {', '.join(COUNTS)}"
            raise StorageError(f"{name} is damaged: {rule}; {way_out}")
        if entry["first"] != self.texts:
            rule = f"it begins with text {entry['first']:,}, and {self.texts:,} come before it"
            raise StorageError(f"{name} is damaged: {rule}; {way_out}")
        return entry

    def _ensure_complete(self) -> None:
        """Require all texts: as many as the input had at the beginning."""
        if self.texts != self.total:
            raise StorageError(
                f"{self.output} would have {self.texts:,} of {self.total:,} texts: the input has "
                f"changed meanwhile; delete {self.journal} and {self.part} to start over"
            )


@contextmanager
def continued(
    output: Path,
    identity: Mapping[str, str],
    total: int,
    complete: Callable[[Path, Path], None] = os.replace,
) -> Iterator[Manifest]:
    """Continue an output, or begin it; it is complete when the block ends without an exception.

    Args:
        output: the file to write.
        identity: what decides its content; an output that was begun with another is refused.
        total: texts that it must have in the end.
        complete: makes the output from the finished part file.

    Raises:
        InvalidInput: another process writes this output, or it was begun with another identity.
        StorageError: a file cannot be written, the manifest is damaged, or texts are missing.
    """
    manifest = Manifest(output, identity, total)
    lock = output.with_name(f".{output.name}.lock")
    locked = exclusive_lock(lock, f"writing {output}", "wait for it, or choose another output")
    with locked, writing(output):
        with manifest._opened():
            try:
                yield manifest
            except BaseException as error:
                if manifest.texts:
                    done = f"{manifest.texts:,} texts are finished"
                    error.add_note(f"{done}: the same command continues after them")
                raise
        complete(manifest.part, output)
        manifest.part.unlink(missing_ok=True)
        manifest.journal.unlink()
