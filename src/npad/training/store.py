"""A token store: parallel sentences as symbols on disk, mapped into memory rather than read.

STORE/
  store.json                                  format, counts, what was dropped
  source.tokenizer.json  target.tokenizer.json
  train/  valid/                              each: source.symbols, source.ends, target.symbols, target.ends

`*.symbols` are all sentences in a row (uint16, or uint32 for a large vocabulary), `*.ends` where each one ends (int64).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from npad.errors import StorageError
from npad.text.subwords import Subwords

FORMAT = 1
SIDES = ("source", "target")


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
        try:
            about = json.loads((folder / "store.json").read_text())
        except (FileNotFoundError, NotADirectoryError) as error:
            raise StorageError(
                f"{folder} is no token store: it has no store.json; make one with npad prepare"
            ) from error
        except ValueError as error:
            raise StorageError(f"{folder}/store.json is damaged: {error}") from error
        if not isinstance(about, dict) or about.get("format") != FORMAT:
            written = about.get("format") if isinstance(about, dict) else None
            raise StorageError(f"{folder} is of format {written}; this npad reads {FORMAT}")
        for key in ("dtypes", "splits", "vocabulary"):
            if key not in about:
                raise StorageError(f"{folder}/store.json is damaged: {key!r} is missing")
        return cls(folder, about)

    @cached_property
    def subwords(self) -> tuple[Subwords, Subwords]:
        source, target = (Subwords.load(self.folder / f"{side}.tokenizer.json") for side in SIDES)
        return source, target

    @property
    def train(self) -> Corpus:
        return Corpus.open(self.folder / "train", self.about["dtypes"])

    @property
    def valid(self) -> Corpus | None:
        return Corpus.open(self.folder / "valid", self.about["dtypes"]) if "valid" in self.about["splits"] else None


class Writer:
    """Appends sentences to one split of a store."""

    def __init__(self, folder: Path, sizes: Sequence[int]) -> None:
        folder.mkdir(parents=True)
        self.dtypes = dtypes(sizes)
        self.files = [[open(folder / f"{side}.{part}", "wb") for part in ("symbols", "ends")] for side in SIDES]  # noqa: SIM115
        self.written = [0, 0]

    def add(self, pairs: Sequence[Sequence[Sequence[int]]]) -> None:
        """Sentences of each side, aligned: [source sentences, target sentences]."""
        for side, sentences in enumerate(pairs):
            lengths = np.fromiter(map(len, sentences), np.int64, len(sentences))
            flat = np.fromiter((symbol for one in sentences for symbol in one), self.dtypes[side], int(lengths.sum()))
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
    symbols, ends = _mapped(folder / f"{name}.symbols", dtype), _mapped(folder / f"{name}.ends", "int64")
    if len(ends) and ends[-1] != len(symbols):
        raise StorageError(f"{folder}/{name}.symbols is damaged: {len(symbols):,} symbols, not {int(ends[-1]):,}")
    return Side(symbols, ends)


def _mapped(path: Path, dtype: str) -> NDArray[Any]:
    try:
        if path.stat().st_size == 0:  # which mmap refuses
            return np.empty(0, dtype)
        return np.memmap(path, dtype, "r")
    except (OSError, ValueError) as error:
        raise StorageError(f"cannot read {path}: {error}") from error
