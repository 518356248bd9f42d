"""Which part of an output is finished, so that a driver that was killed continues.

`OUTPUT.part` holds what is written so far, in the order of the input. `OUTPUT.manifest.jsonl` has a
header, which says what is being written, and a line per finished unit: its number of texts, its
bytes in the part file and their SHA-256. A line is added after the bytes, so whatever was cut off
is found by its checksum, dropped and translated again. Both files are gone when the output is
complete.
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
from npad.storage.regular import ensure_regular, parse_json, writing

FORMAT = 1
MAX_ENTRY_BYTES = 1 << 26  # a unit's line: its figures, and the texts that failed
SHOWN = 60  # characters of a setting that an error shows


@dataclass
class Manifest:
    """The finished part of an output.

    Attributes:
        output: the file that will be complete.
        identity: what decides the output: digests of input and model, the decoder, limits, format.
        texts: texts that are finished.
        failed: finished texts that have no translation.
        near_ties: finished texts with a near-tie.
    """

    output: Path
    identity: Mapping[str, str]
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
            "texts": texts,
            "bytes": len(content),
            "sha256": hashlib.sha256(content).hexdigest(),
            "failed": failed,
            "near_ties": near_ties,
        }
        self._part.write(content)
        self._part.flush()
        self._journal.write(json.dumps(entry).encode() + b"\n")
        self._journal.flush()
        self._count(entry)

    def _count(self, entry: Mapping[str, Any]) -> None:
        self.texts += entry["texts"]
        self.failed += entry["failed"]
        self.near_ties += entry["near_ties"]

    @contextmanager
    def _opened(self) -> Iterator[None]:
        """Open both files at the end of what is sound; begin anew if there is nothing."""
        if self.part.exists() and not self.journal.exists() and self.part.stat().st_size:
            raise InvalidInput(
                f"{self.part} is in the way: it belongs to no output that npad began; move it, or "
                "choose another output"
            )
        if not (self.journal.exists() and self.part.exists()):
            header = {"npad": FORMAT, "identity": dict(self.identity)}
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
            os.fsync(self._part.fileno())

    def _ensure_same(self) -> None:
        """Refuse to continue an output of another input, model or decoder."""
        header = parse_json(self._journal.readline(MAX_ENTRY_BYTES), str(self.journal))
        way_out = f"to begin anew, delete {self.journal} and {self.part}"
        if not isinstance(header, dict) or header.get("npad") != FORMAT:
            raise StorageError(f"{self.journal} is damaged or of another version; {way_out}")
        begun = header.get("identity", {})
        for name, value in self.identity.items():
            if begun.get(name) != value:
                raise InvalidInput(
                    f"{self.output} was begun with {name} {str(begun.get(name))[:SHOWN]}, not "
                    f"{value[:SHOWN]}; use that, or another output; {way_out}"
                )

    def _sound_end(self) -> int:
        """Read the entries whose content is there; return its end, and stay after the last one."""
        end = 0
        while True:
            place = self._journal.tell()
            try:
                entry = parse_json(self._journal.readline(MAX_ENTRY_BYTES), str(self.journal))
                content = self._part.read(entry["bytes"])
                sound = hashlib.sha256(content).hexdigest() == entry["sha256"]
                if not sound:
                    raise StorageError("another checksum")
                self._count(entry)
            except (StorageError, KeyError, TypeError):  # the end, or cut off
                self._journal.seek(place)
                return end
            end += len(content)


@contextmanager
def continued(
    output: Path, identity: Mapping[str, str], complete: Callable[[Path, Path], None] = os.replace
) -> Iterator[Manifest]:
    """Continue an output, or begin it; it is complete when the block ends without an exception.

    Args:
        output: the file to write.
        identity: what decides its content; an output that was begun with another is refused.
        complete: makes the output from the finished part file.

    Raises:
        InvalidInput: another process writes this output, or it was begun with another identity.
        StorageError: a file cannot be written.
    """
    manifest = Manifest(output, identity)
    lock = output.with_name(f".{output.name}.lock")
    with exclusive_lock(lock, f"writing {output}", "wait for it, or choose another output"):
        try:
            with writing(output):
                with manifest._opened():
                    yield manifest
                complete(manifest.part, output)
                manifest.part.unlink(missing_ok=True)
                manifest.journal.unlink()
        except BaseException as error:
            if manifest.texts:
                error.add_note(
                    f"{manifest.texts:,} texts are finished: the same command continues after them"
                )
            raise
