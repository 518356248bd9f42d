"""A token store: parallel sentences as tokens on disk, memory-mapped.

STORE/
  store.json               format, counts, dropped pairs, SHA-256 of every file
  source.tokenizer.json  target.tokenizer.json
  train/  valid/           each: source.tokens, source.ends, target.tokens, target.ends

A store of pictures or sounds has no source tokenizer, and the files of `sources` as its source.

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
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from npad.errors import InvalidInput, StorageError
from npad.storage.regular import file_digest, read_json, unseal
from npad.text.subwords import SIDES, TOKENIZER_FILES, Subwords
from npad.training.sources import NETWORK_FILE, Side, Source, SourceKind, mapped
from npad.validation import one_line

FORMAT = 2
PARTS = ("tokens", "ends")  # the files of a side
WAY_OUT = "make it again with npad prepare"


@dataclass(frozen=True)
class PairCorpus:
    """The pairs of a split."""

    source: Source
    target: Side

    def __len__(self) -> int:
        return len(self.target.ends)

    @classmethod
    def open(cls, folder: Path, dtypes: Sequence[str], kind: SourceKind | None = None) -> Self:
        """Memory-map the files of a split.

        Args:
            folder: the folder of the split.
            dtypes: the types of the source and target tokens.
            kind: what the source is, if it is not text.

        Raises:
            StorageError: a file cannot be read, or its length does not fit the ends.
        """
        target = _side(folder, "target", dtypes[1])
        if kind is None:
            return cls(_side(folder, "source", dtypes[0]), target)
        return cls(kind.open(folder), target)


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
            raise StorageError(f"{one_line(folder)} is not a token store: {reason}")
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
    def kind(self) -> SourceKind | None:
        """What the source is, if it is not text."""
        return SourceKind.of(self.about)

    @cached_property
    def subwords(self) -> tuple[Subwords | None, Subwords]:
        """The vocabularies of source, if it is a text, and target."""
        loaded: list[Subwords] = []
        names = TOKENIZER_FILES if self.kind is None else TOKENIZER_FILES[1:]
        sizes = self.about["vocabulary"][-len(names) :]
        for name, size in zip(names, sizes, strict=True):
            loaded.append(Subwords.load(self.folder / name))
            if loaded[-1].size != size:
                reason = f"{name} has {loaded[-1].size:,} tokens, not {size:,}"
                raise StorageError(f"{self.folder} is damaged: {reason}; {WAY_OUT}")
        return loaded[0] if self.kind is None else None, loaded[-1]

    @property
    def pretrained(self) -> dict[str, Tensor] | None:
        """The weights of the frozen network that encoded the pictures, if any.

        Raises:
            StorageError: they cannot be read.
        """
        if self.kind is None or self.kind.network is None:
            return None
        try:
            return load_file(self.folder / NETWORK_FILE)
        except (OSError, SafetensorError) as error:
            raise StorageError(f"cannot read {self.folder / NETWORK_FILE}: {error}") from error

    @property
    def train(self) -> PairCorpus:
        """The training pairs."""
        return self._corpus("train")

    @property
    def valid(self) -> PairCorpus | None:
        """The validation pairs, if any."""
        return self._corpus("valid") if "valid" in self.about["splits"] else None

    def _corpus(self, split: str) -> PairCorpus:
        return PairCorpus.open(self.folder / split, self.about["dtypes"], self.kind)


class SideWriter:
    """Appends sentences to a side of a split, in a `with` block."""

    def __init__(self, folder: Path, side: str, dtype: str) -> None:
        self.files = [open(folder / f"{side}.{part}", "wb") for part in PARTS]  # noqa: SIM115
        self.dtype = dtype
        self.written = 0  # tokens

    def add(self, sentences: Sequence[Sequence[int]]) -> None:
        """Append sentences, token lists."""
        lengths = np.fromiter(map(len, sentences), np.int64, len(sentences))
        tokens = np.fromiter(
            (token for sentence in sentences for token in sentence), self.dtype, int(lengths.sum())
        )
        for file, array in zip(
            self.files, (tokens, self.written + np.cumsum(lengths)), strict=True
        ):
            file.write(array.tobytes())
        self.written += len(tokens)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for file in self.files:
            file.close()


def dtypes(sizes: Sequence[int]) -> list[str]:
    """Return the smallest unsigned type that holds the tokens of each vocabulary."""
    return ["uint16" if size <= 1 << 16 else "uint32" for size in sizes]


def file_names(splits: Sequence[str], kind: SourceKind | None = None) -> list[str]:
    """List the files of a store other than store.json."""
    tokenizers = TOKENIZER_FILES if kind is None else TOKENIZER_FILES[1:]
    sides = SIDES if kind is None else SIDES[1:]
    parts = [f"{side}.{part}" for side in sides for part in PARTS]
    parts += [] if kind is None else kind.files
    tokenizers += () if kind is None or kind.network is None else (NETWORK_FILE,)
    return [*tokenizers, *(f"{split}/{part}" for split in splits for part in parts)]


def _side(folder: Path, name: str, dtype: str) -> Side:
    tokens = mapped(folder / f"{name}.tokens", dtype)
    ends = mapped(folder / f"{name}.ends", "int64")
    if len(ends) and ends[-1] != len(tokens):
        reason = f"{len(tokens):,} tokens, not {int(ends[-1]):,}"
        raise StorageError(f"{folder}/{name}.tokens is damaged: {reason}")
    return Side(tokens, ends)


def _fault(about: dict[str, Any]) -> str:
    """Return the first fault in the fields of store.json, whose digest is right, or nothing."""
    required = ("vocabulary", "dtypes", "splits", "joint", "sha256")
    missing = [name for name in required if name not in about]
    if missing:
        return f"{missing[0]!r} is missing"
    try:
        kind = SourceKind.of(about)
    except InvalidInput as error:
        return str(error)
    splits, recorded = about["splits"], about["sha256"]
    if not isinstance(splits, dict) or not {"train"} <= splits.keys() <= {"train", "valid"}:
        return f"splits must be train and valid, not {splits!r:.80}"
    if not isinstance(recorded, dict) or set(recorded) != set(file_names(list(splits), kind)):
        return "sha256 does not list the files of the store"
    return ""
