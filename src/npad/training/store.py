"""A token store: parallel sentences as symbols on disk, mapped into memory rather than read.

STORE/
  store.json                                  format, counts, what was dropped, SHA-256 of all files
  source.tokenizer.json  target.tokenizer.json
  train/  valid/                              each: source.symbols, source.ends, target.symbols, target.ends

`*.symbols` are all sentences in a row (uint16, or uint32 for a large vocabulary), `*.ends` where each one ends (int64).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from npad.errors import StorageError
from npad.storage.regular import open_regular
from npad.storage.sealed import file_digest, read_json, unseal
from npad.text.subwords import Subwords

FORMAT = 2
SIDES = ("source", "target")
COUNTS = ("pairs", "kept", "empty", "long")
ANEW = "make it anew with npad prepare"


@dataclass(frozen=True)
class Side:
    """One language of a split."""

    symbols: NDArray[Any]  # [all symbols]
    ends: NDArray[np.int64]  # [sentences]

    @cached_property
    def lengths(self) -> NDArray[np.int32]:
        return np.diff(self.ends, prepend=0).astype(np.int32)

    def padded(self, index: NDArray[np.int64], width: int, fill: int) -> NDArray[np.int64]:
        """The sentences at `index` [n] as one array [n, width], filled up on the right."""
        lengths, place = self.lengths[index], np.arange(width)
        inside = place < lengths[:, None]
        at = np.where(inside, (self.ends[index] - lengths)[:, None] + place, 0)
        return np.where(inside, self.symbols[at] if len(self.symbols) else 0, fill).astype(np.int64)


@dataclass(frozen=True)
class Corpus:
    """The pairs of one split."""

    source: Side
    target: Side

    def __len__(self) -> int:
        return len(self.source.ends)

    @classmethod
    def open(cls, folder: Path, dtypes: Sequence[str]) -> Self:
        return cls(*(_side(folder, name, dtype) for name, dtype in zip(SIDES, dtypes, strict=True)))


@dataclass(frozen=True)
class Store:
    """A store on disk: what was prepared, with the subwords it was prepared with."""

    folder: Path
    about: dict[str, Any]

    @classmethod
    def open(cls, folder: str | Path) -> Self:
        folder = Path(folder)
        if not os.path.exists(folder / "store.json"):
            reason = "it has no store.json; make one with npad prepare"
            raise StorageError(f"{folder} is no token store: {reason}")
        written = read_json(folder / "store.json").get("format")
        if written != FORMAT:
            rule = f"is of format {written!r:.20}; this npad reads {FORMAT}"
            raise StorageError(f"{folder} {rule}; {ANEW}")
        about = unseal(folder / "store.json")
        for reason in _faults(about):
            raise StorageError(f"{folder}/store.json is damaged: {reason}; {ANEW}")
        return cls(folder, about)

    def verify(self) -> Self:
        """Hold every file to the SHA-256 that `npad prepare` recorded: one pass over the store."""
        for name, recorded in self.about["sha256"].items():
            if file_digest(self.folder / name) != recorded:
                reason = "its checksum is not the one in store.json"
                raise StorageError(f"{self.folder / name} is damaged: {reason}; {ANEW}")
        return self

    @cached_property
    def subwords(self) -> tuple[Subwords, Subwords]:
        source, target = (Subwords.load(self.folder / f"{side}.tokenizer.json") for side in SIDES)
        sizes = self.about["vocabulary"]
        for side, tokenizer, size in zip(SIDES, (source, target), sizes, strict=True):
            if tokenizer.size != size:
                reason = f"{side}.tokenizer.json has {tokenizer.size:,} symbols, not {size:,}"
                raise StorageError(f"{self.folder} is damaged: {reason}; {ANEW}")
        return source, target

    @property
    def train(self) -> Corpus:
        return self._corpus("train")

    @property
    def valid(self) -> Corpus | None:
        return self._corpus("valid") if "valid" in self.about["splits"] else None

    def _corpus(self, split: str) -> Corpus:
        """Map a split into memory, and check its number of pairs, its ends and its symbols."""
        folder, pairs = self.folder / split, self.about["splits"][split]["kept"]
        corpus = Corpus.open(folder, self.about["dtypes"])
        for name, size in zip(SIDES, self.about["vocabulary"], strict=True):
            side: Side = getattr(corpus, name)
            if len(side.ends) != pairs:
                reason = f"{len(side.ends):,} sentences, not {pairs:,}"
                raise StorageError(f"{folder}/{name}.ends is damaged: {reason}; {ANEW}")
            if side.ends[0] < 1 or (side.ends[1:] <= side.ends[:-1]).any():
                raise StorageError(f"{folder}/{name}.ends is damaged: the ends do not rise; {ANEW}")
            if side.symbols.min() < 1 or side.symbols.max() >= size:
                reason = f"a symbol is not among 1 to {size - 1:,}"
                raise StorageError(f"{folder}/{name}.symbols is damaged: {reason}; {ANEW}")
        return corpus


class Writer:
    """Appends sentences to one split of a store."""

    def __init__(self, folder: Path, sizes: Sequence[int]) -> None:
        folder.mkdir(parents=True)
        self.dtypes = dtypes(sizes)
        self.files = [
            [open(folder / f"{side}.{part}", "wb") for part in ("symbols", "ends")]
            for side in SIDES
        ]
        self.written = [0, 0]

    def add(self, pairs: Sequence[Sequence[Sequence[int]]]) -> None:
        """Sentences of each side, aligned: [source sentences, target sentences]."""
        for side, sentences in enumerate(pairs):
            lengths = np.fromiter(map(len, sentences), np.int64, len(sentences))
            flat = np.fromiter(
                (symbol for one in sentences for symbol in one),
                self.dtypes[side],
                int(lengths.sum()),
            )
            ends = self.written[side] + np.cumsum(lengths)
            symbols, places = self.files[side]
            symbols.write(flat.tobytes())
            places.write(ends.tobytes())
            self.written[side] += len(flat)

    def close(self) -> None:
        for file in (file for side in self.files for file in side):
            file.close()


def dtypes(sizes: Sequence[int]) -> list[str]:
    """The smallest unsigned type that holds the symbols of each vocabulary."""
    return ["uint16" if size <= 1 << 16 else "uint32" for size in sizes]


def _side(folder: Path, name: str, dtype: str) -> Side:
    symbols, ends = (
        _mapped(folder / f"{name}.symbols", dtype),
        _mapped(folder / f"{name}.ends", "int64"),
    )
    if len(ends) and ends[-1] != len(symbols):
        raise StorageError(
            f"{folder}/{name}.symbols is damaged: {len(symbols):,} symbols, not {int(ends[-1]):,}"
        )
    return Side(symbols, ends)


def members(splits: Sequence[str]) -> list[str]:
    """The files of a store beside store.json."""
    parts = [f"{side}.{part}" for side in SIDES for part in ("symbols", "ends")]
    tokenizers = [f"{side}.tokenizer.json" for side in SIDES]
    return tokenizers + [f"{split}/{part}" for split in splits for part in parts]


def _faults(about: dict[str, Any]) -> list[str]:
    """What is wrong with the fields of store.json, the first of it first."""
    required = ("vocabulary", "dtypes", "splits", "joint", "sha256")
    missing = [name for name in required if name not in about]
    if missing:
        return [f"{name!r} is missing" for name in missing]
    sizes, splits = about["vocabulary"], about["splits"]
    if not _counts(sizes, 2) or min(sizes) < 2:
        return [f"vocabulary must be two whole numbers of at least 2, not {sizes!r:.80}"]
    if about["dtypes"] != dtypes(sizes):
        return [f"dtypes must be {dtypes(sizes)}, not {about['dtypes']!r:.80}"]
    if not isinstance(about["joint"], bool):
        return [f"joint must be true or false, not {about['joint']!r:.80}"]
    if not isinstance(splits, dict) or not {"train"} <= splits.keys() <= {"train", "valid"}:
        return [f"splits must be train and valid, not {splits!r:.80}"]
    for split, counts in splits.items():
        if not isinstance(counts, dict) or not _counts([counts.get(name) for name in COUNTS], 4):
            return [f"the counts of {split} must be whole numbers, not {counts!r:.80}"]
        if counts["kept"] < 1 or not _counts(counts.get("symbols"), 2):
            return [f"the counts of {split} are {counts!r:.80}"]
    recorded = about["sha256"]
    if not isinstance(recorded, dict) or set(recorded) != set(members(list(splits))):
        return ["sha256 does not list the files of the store"]
    return []


def _counts(values: Any, size: int) -> bool:
    """Whether these are `size` whole numbers of at least 0."""
    if not isinstance(values, list) or len(values) != size:
        return False
    return all(type(value) is int and value >= 0 for value in values)  # a bool is none


def _mapped(path: Path, dtype: str) -> NDArray[Any]:
    with open_regular(path) as file:
        try:
            if os.fstat(file.fileno()).st_size == 0:  # which mmap refuses
                return np.empty(0, dtype)
            return np.memmap(file, dtype, "r")
        except (OSError, ValueError) as error:
            raise StorageError(f"cannot read {path}: {error}") from error
