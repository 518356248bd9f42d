"""A token store: parallel sentences as tokens on disk, memory-mapped.

STORE/
  store.json               format, counts, dropped pairs, SHA-256 of every file
  source.tokenizer.json  target.tokenizer.json
  train/  valid/           each: source.tokens, source.ends, target.tokens, target.ends

`*.tokens` hold all sentences one after another (uint16, or uint32 for a large vocabulary),
`*.ends` the offset at which each sentence ends (int64).
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
from npad.storage.regular import file_digest, open_regular, read_json
from npad.storage.sealed import unseal
from npad.text.subwords import SIDES, TOKENIZER_FILES, Subwords
from npad.validation import one_line

FORMAT = 2
PARTS = ("tokens", "ends")  # the files of a side
COUNTS = ("pairs", "kept", "empty", "long")
WAY_OUT = "make it anew with npad prepare"


@dataclass(frozen=True)
class Side:
    """The sentences of one language of a split."""

    tokens: NDArray[Any]  # [all tokens]
    ends: NDArray[np.int64]  # [sentences]

    @cached_property
    def lengths(self) -> NDArray[np.int32]:
        """The number of tokens of each sentence: [sentences]."""
        return np.diff(self.ends, prepend=0).astype(np.int32)

    def padded(self, index: NDArray[np.int64], width: int, fill: int) -> NDArray[np.int64]:
        """Return the sentences at `index` [n] as one array [n, width], padded on the right."""
        lengths, column = self.lengths[index], np.arange(width)
        inside = column < lengths[:, None]
        offsets = np.where(inside, (self.ends[index] - lengths)[:, None] + column, 0)
        tokens = self.tokens[offsets] if len(self.tokens) else 0
        return np.where(inside, tokens, fill).astype(np.int64)


@dataclass(frozen=True)
class Corpus:
    """The pairs of a split."""

    source: Side
    target: Side

    def __len__(self) -> int:
        return len(self.source.ends)

    @classmethod
    def open(cls, folder: Path, dtypes: Sequence[str]) -> Self:
        """Memory-map the four files of a split.

        Args:
            folder: the folder of the split.
            dtypes: the types of the source and target tokens.

        Raises:
            StorageError: a file cannot be read, or its length does not fit the ends.
        """
        return cls(*(_side(folder, name, dtype) for name, dtype in zip(SIDES, dtypes, strict=True)))


@dataclass(frozen=True)
class Store:
    """A token store on disk, with the subwords it was prepared with."""

    folder: Path
    about: dict[str, Any]  # store.json

    @classmethod
    def open(cls, folder: str | Path) -> Self:
        """Open a token store and check store.json.

        Raises:
            StorageError: there is no store, or store.json is damaged or of another format.
        """
        folder = Path(folder)
        if not os.path.exists(folder / "store.json"):
            reason = "it has no store.json; make one with npad prepare"
            raise StorageError(f"{one_line(folder)} is no token store: {reason}")
        written = read_json(folder / "store.json").get("format")
        if written != FORMAT:
            rule = f"is of format {written!r:.20}; this npad reads {FORMAT}"
            raise StorageError(f"{folder} {rule}; {WAY_OUT}")
        about = unseal(folder / "store.json")
        if reason := _fault(about):
            raise StorageError(f"{folder}/store.json is damaged: {reason}; {WAY_OUT}")
        return cls(folder, about)

    def verify(self) -> Self:
        """Verify the SHA-256 of every file, in one pass over the store.

        Raises:
            StorageError: a file is missing or damaged.
        """
        for name, recorded in self.about["sha256"].items():
            if file_digest(self.folder / name) != recorded:
                reason = "its checksum is not the one in store.json"
                raise StorageError(f"{self.folder / name} is damaged: {reason}; {WAY_OUT}")
        return self

    @cached_property
    def subwords(self) -> tuple[Subwords, Subwords]:
        """The source and target vocabularies."""
        source, target = (Subwords.load(self.folder / name) for name in TOKENIZER_FILES)
        sizes = self.about["vocabulary"]
        for name, tokenizer, size in zip(TOKENIZER_FILES, (source, target), sizes, strict=True):
            if tokenizer.size != size:
                reason = f"{name} has {tokenizer.size:,} tokens, not {size:,}"
                raise StorageError(f"{self.folder} is damaged: {reason}; {WAY_OUT}")
        return source, target

    @property
    def train(self) -> Corpus:
        """The training pairs."""
        return self._corpus("train")

    @property
    def valid(self) -> Corpus | None:
        """The validation pairs, if any."""
        return self._corpus("valid") if "valid" in self.about["splits"] else None

    def _corpus(self, split: str) -> Corpus:
        """Memory-map a split, and check its number of pairs, its ends and its tokens."""
        folder, pairs = self.folder / split, self.about["splits"][split]["kept"]
        corpus = Corpus.open(folder, self.about["dtypes"])
        for name, size in zip(SIDES, self.about["vocabulary"], strict=True):
            side: Side = getattr(corpus, name)
            if len(side.ends) != pairs:
                reason = f"{len(side.ends):,} sentences, not {pairs:,}"
                raise StorageError(f"{folder}/{name}.ends is damaged: {reason}; {WAY_OUT}")
            if side.ends[0] < 1 or (side.ends[1:] <= side.ends[:-1]).any():
                reason = "the ends do not rise"
                raise StorageError(f"{folder}/{name}.ends is damaged: {reason}; {WAY_OUT}")
            if side.tokens.min() < 1 or side.tokens.max() >= size:
                reason = f"a token is not among 1 to {size - 1:,}"
                raise StorageError(f"{folder}/{name}.tokens is damaged: {reason}; {WAY_OUT}")
        return corpus


class Writer:
    """Appends sentences to a split of a store."""

    def __init__(self, folder: Path, sizes: Sequence[int]) -> None:
        folder.mkdir(parents=True)
        self.dtypes = dtypes(sizes)
        self.files = [
            [open(folder / f"{side}.{part}", "wb") for part in PARTS]  # noqa: SIM115
            for side in SIDES
        ]
        self.written = [0, 0]  # tokens of source and target

    def add(self, pairs: Sequence[Sequence[Sequence[int]]]) -> None:
        """Append aligned sentences: [source sentences, target sentences]."""
        for side, sentences in enumerate(pairs):
            lengths = np.fromiter(map(len, sentences), np.int64, len(sentences))
            tokens = np.fromiter(
                (token for sentence in sentences for token in sentence),
                self.dtypes[side],
                int(lengths.sum()),
            )
            ends = self.written[side] + np.cumsum(lengths)
            for file, array in zip(self.files[side], (tokens, ends), strict=True):
                file.write(array.tobytes())
            self.written[side] += len(tokens)

    def close(self) -> None:
        """Close the files."""
        for files in self.files:
            for file in files:
                file.close()


def dtypes(sizes: Sequence[int]) -> list[str]:
    """Return the smallest unsigned type that holds the tokens of each vocabulary."""
    return ["uint16" if size <= 1 << 16 else "uint32" for size in sizes]


def file_names(splits: Sequence[str]) -> list[str]:
    """List the files of a store other than store.json."""
    parts = [f"{side}.{part}" for side in SIDES for part in PARTS]
    return [*TOKENIZER_FILES, *(f"{split}/{part}" for split in splits for part in parts)]


def _side(folder: Path, name: str, dtype: str) -> Side:
    tokens = _mapped(folder / f"{name}.tokens", dtype)
    ends = _mapped(folder / f"{name}.ends", "int64")
    if len(ends) and ends[-1] != len(tokens):
        reason = f"{len(tokens):,} tokens, not {int(ends[-1]):,}"
        raise StorageError(f"{folder}/{name}.tokens is damaged: {reason}")
    return Side(tokens, ends)


def _mapped(path: Path, dtype: str) -> NDArray[Any]:
    with open_regular(path) as file:
        try:
            if os.fstat(file.fileno()).st_size == 0:  # mmap refuses an empty file
                return np.empty(0, dtype)
            return np.memmap(file, dtype, "r")
        except (OSError, ValueError) as error:
            raise StorageError(f"cannot read {path}: {error}") from error


def _fault(about: dict[str, Any]) -> str:
    """Return the first fault in the fields of store.json, or an empty string."""
    required = ("vocabulary", "dtypes", "splits", "joint", "sha256")
    missing = [name for name in required if name not in about]
    if missing:
        return f"{missing[0]!r} is missing"
    sizes, splits = about["vocabulary"], about["splits"]
    if not _are_counts(sizes, 2) or min(sizes) < 2:
        return f"vocabulary must be two whole numbers of at least 2, not {sizes!r:.80}"
    if about["dtypes"] != dtypes(sizes):
        return f"dtypes must be {dtypes(sizes)}, not {about['dtypes']!r:.80}"
    if not isinstance(about["joint"], bool):
        return f"joint must be true or false, not {about['joint']!r:.80}"
    if not isinstance(splits, dict) or not {"train"} <= splits.keys() <= {"train", "valid"}:
        return f"splits must be train and valid, not {splits!r:.80}"
    for split, counts in splits.items():
        numbers = [counts.get(name) for name in COUNTS] if isinstance(counts, dict) else None
        if not _are_counts(numbers, len(COUNTS)):
            return f"the counts of {split} must be whole numbers, not {counts!r:.80}"
        if counts["kept"] < 1 or not _are_counts(counts.get("tokens"), 2):
            return f"the counts of {split} are {counts!r:.80}"
    recorded = about["sha256"]
    if not isinstance(recorded, dict) or set(recorded) != set(file_names(list(splits))):
        return "sha256 does not list the files of the store"
    return ""


def _are_counts(values: Any, size: int) -> bool:
    """Return whether `values` is a list of `size` whole numbers of at least 0."""
    if not isinstance(values, list) or len(values) != size:
        return False
    return all(type(value) is int and value >= 0 for value in values)  # a bool does not count
