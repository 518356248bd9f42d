"""Sources of training pairs, memory-mapped: sentences, pictures, sounds; and what they hold.

Pictures and sounds are stored once, whatever the number of their texts:

  source.items     the picture or sound of each pair (int64)
  source.pixels    all pictures, [pictures, 3, size, size] (uint8)
  source.cells     or their features by a frozen network, [pictures, cells, channels] (float16)
  source.frames    all sounds one after another, [frames, bins] (float16)
  source.ends      the frame at which each sound ends (int64)
"""

from __future__ import annotations

import io
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from npad.errors import InvalidInput, StorageError
from npad.models.encoders.efficientnet import CELLS, CHANNELS, NETWORKS
from npad.models.encoders.sound import STRIDE
from npad.pipelines.pictures import read_picture
from npad.pipelines.sound import log_mel, read_wav
from npad.storage.regular import open_regular
from npad.validation import brief, ensure_choice, ensure_integer

Index = NDArray[np.int64]
# Positions of a sound are rounded up to so many times a text's step: sounds are longer, and every
# shape is captured as a graph.
SOUND_STEPS = 8
SOURCES = {"caption": "picture", "speech": "sound"}
# Options of a source's encoder that the data fix; a model's `source_options` hold them and others.
FEATURES = {"picture": {"size": 80}, "sound": {"rate": 8000, "bins": 40}}
MAX_FEATURE = 1 << 20
NETWORK = "network"  # the optional feature of a picture: the frozen network that encoded it
NETWORK_FILE = "picture.safetensors"  # of a store: that network
DTYPES = {
    "source.pixels": "uint8",
    "source.cells": "float16",
    "source.frames": "float16",
    "source.ends": "int64",
}
FILES = {
    "picture": ["source.items", "source.pixels"],
    "cells": ["source.items", "source.cells"],
    "sound": ["source.items", "source.frames", "source.ends"],
}


class Source(Protocol):
    """The sources of a split's pairs."""

    @property
    def positions(self) -> NDArray[np.int32]:
        """The positions that attention looks at, of each pair: [pairs]."""

    def read(self, index: Index, step: int, eos: int) -> tuple[Tensor, Tensor | None]:
        """Return the sources of pairs as `AttentionModel.padded` does.

        Args:
            index: [n], pairs.
            step: lengths are rounded up to a multiple of it.
            eos: the token that sentences end with and are padded with.
        """


@dataclass(frozen=True)
class Side:
    """The sentences of one language of a split."""

    tokens: NDArray[Any]  # [all tokens]
    ends: NDArray[np.int64]  # [sentences]

    @cached_property
    def lengths(self) -> NDArray[np.int32]:
        """The number of tokens of each sentence: [sentences]."""
        return np.diff(self.ends, prepend=0).astype(np.int32)

    @cached_property
    def positions(self) -> NDArray[np.int32]:
        """The same with the end token."""
        return self.lengths + 1

    def read(self, index: Index, step: int, eos: int) -> tuple[Tensor, Tensor]:
        lengths = torch.from_numpy(self.positions[index]).long()
        width = int(round_up(int(lengths.max()), step))
        return torch.from_numpy(self.padded(index, width, eos)), lengths

    def padded(self, index: NDArray[np.int64], width: int, fill: int) -> NDArray[np.int64]:
        """Return the sentences at `index` [n] as one array [n, width], padded on the right."""
        lengths, column = self.lengths[index], np.arange(width)
        inside = column < lengths[:, None]
        offsets = np.where(inside, (self.ends[index] - lengths)[:, None] + column, 0)
        tokens = self.tokens[offsets] if len(self.tokens) else 0
        return np.where(inside, tokens, fill).astype(np.int64)


@dataclass(frozen=True)
class Pictures:
    """The pictures of a split."""

    content: NDArray[Any]  # [pictures, 3, size, size], or [pictures, cells, channels] of features
    items: NDArray[np.int64]  # [pairs], the picture of each
    cells: int  # that attention looks at, about as many as the encoder's

    @cached_property
    def positions(self) -> NDArray[np.int32]:
        return np.full(len(self.items), self.cells, np.int32)

    def read(self, index: Index, step: int, eos: int) -> tuple[Tensor, Tensor | None]:
        return torch.from_numpy(self.content[self.items[index]]), None


@dataclass(frozen=True)
class Sounds:
    """The sounds of a split."""

    frames: NDArray[np.float16]  # [all frames, bins]
    ends: NDArray[np.int64]  # [sounds]
    items: NDArray[np.int64]  # [pairs], the sound of each

    @cached_property
    def lengths(self) -> NDArray[np.int64]:
        """The frames of each sound: [sounds]."""
        return np.diff(self.ends, prepend=0)

    @cached_property
    def positions(self) -> NDArray[np.int32]:
        positions: NDArray[np.int64] = -(-self.lengths[self.items] // STRIDE)
        return positions.astype(np.int32)

    def read(self, index: Index, step: int, eos: int) -> tuple[Tensor, Tensor | None]:
        sounds = self.items[index]
        lengths = self.lengths[sounds]
        width = int(round_up(int(lengths.max()), STRIDE * SOUND_STEPS * step))
        padded = np.zeros((len(index), width, self.frames.shape[1]), np.float32)
        for row, end, length in zip(padded, self.ends[sounds], lengths, strict=True):
            row[:length] = self.frames[end - length : end]
        return torch.from_numpy(padded), torch.from_numpy(lengths)


@dataclass(frozen=True)
class SourceKind:
    """What a store's source is, if it is not text, and with which features it was stored."""

    name: str  # "caption" or "speech"
    features: Mapping[str, Any]  # {"size": 80}, or {"rate": 8000, "bins": 40}

    @classmethod
    def named(cls, name: str, features: Mapping[str, Any] | None = None) -> SourceKind:
        """Return the kind of a task, with the given features or `FEATURES`.

        Raises:
            InvalidInput: there is no such task, or a feature is unknown or out of range.
        """
        ensure_choice("task", name, tuple(SOURCES))
        source = SOURCES[name]
        if features is not None and not isinstance(features, Mapping):
            raise InvalidInput(f"features must be a dictionary, not {brief(features)}")
        known = FEATURES[source]
        for feature, value in (features or {}).items():
            if feature == NETWORK and source == "picture":
                ensure_choice(NETWORK, value, NETWORKS)
                continue
            if feature not in known:
                rule = f"it has {', '.join(known)}"
                raise InvalidInput(f"a {source} has no feature {brief(feature)}; {rule}")
            ensure_integer(feature, value, 1, MAX_FEATURE)
        return cls(name, known | dict(features or {}))

    @classmethod
    def of(cls, about: Mapping[str, Any]) -> SourceKind | None:
        """Return the kind of a store, from its store.json; None for texts.

        Raises:
            InvalidInput: there is no such task.
        """
        if "task" not in about:
            return None
        return cls.named(about["task"], about.get("features"))

    @property
    def source(self) -> str:
        """The source that its models read."""
        return SOURCES[self.name]

    @property
    def network(self) -> str | None:
        """The frozen network whose features of pictures are stored, if any."""
        return self.features.get(NETWORK)

    @property
    def files(self) -> list[str]:
        """The files of a split's source."""
        return FILES["cells" if self.network else self.source]

    def model_options(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options of a model, completed by the source and its features.

        Raises:
            InvalidInput: the options ask for other features than the data has.
        """
        chosen = options.get("source_options") or {}
        if not isinstance(chosen, Mapping):
            raise InvalidInput(f"source_options must be a dictionary, not {brief(chosen)}")
        for name, value in self.features.items():
            if name in chosen and chosen[name] != value:
                raise InvalidInput(
                    f"the data has {name} {value}, and the model cannot have {brief(chosen[name])}"
                )
        merged = dict(chosen) | dict(self.features)
        return dict(options) | {"source": self.source, "source_options": merged}

    def read(self, content: bytes, name: str) -> Tensor:
        """Return the picture or the features of the sound in a file.

        Raises:
            InvalidInput: the file is not a picture or sound.
        """
        if self.source == "picture":
            return read_picture(content, self.features["size"], name)
        rate = self.features["rate"]
        samples = read_wav(io.BytesIO(content), name, rate)
        return log_mel(samples, rate, self.features["bins"])

    def open(self, folder: Path) -> Source:
        """Memory-map the source of a split.

        Raises:
            StorageError: a file cannot be read, or does not fit.
        """
        items, *names = self.files
        of_pairs = mapped(folder / items, "int64")
        if self.source == "sound":
            frames, ends = (mapped(folder / name, DTYPES[name]) for name in names)
            return Sounds(_shaped(frames, (self.features["bins"],), folder), ends, of_pairs)
        size = self.features["size"]
        shape = (CELLS, CHANNELS) if self.network else (3, size, size)
        content = mapped(folder / names[0], DTYPES[names[0]])
        cells = CELLS if self.network else max(1, (size // 8) ** 2)
        return Pictures(_shaped(content, shape, folder), of_pairs, cells)

    def checked(self, item: Tensor, number: int) -> Tensor:
        """Return an item in the type of the store.

        Raises:
            InvalidInput: it is of another type or shape.
        """
        if self.source == "picture":
            size = self.features["size"]
            fits = isinstance(item, Tensor) and item.dtype == torch.uint8
            rule, shape = f"a uint8 tensor [3, {size}, {size}]", (3, size, size)
            fits = fits and tuple(item.shape) == shape
        else:
            bins = self.features["bins"]
            rule = f"a floating-point tensor [frames, {bins}]"
            fits = isinstance(item, Tensor) and item.is_floating_point() and item.dim() == 2
            fits = fits and item.shape[1] == bins and len(item) > 0
        if not fits:
            kind = list(item.shape) if isinstance(item, Tensor) else brief(item)
            raise InvalidInput(f"{self.source} {number} must be {rule}, not {kind}")
        return item.half() if self.source == "sound" else item


def _shaped(flat: NDArray[Any], shape: tuple[int, ...], folder: Path) -> NDArray[Any]:
    """Return the items of a shape that a file holds one after another."""
    if len(flat) % math.prod(shape):
        raise StorageError(f"the source of {folder} is damaged: {len(flat):,} numbers")
    return flat.reshape(-1, *shape)


def mapped(path: Path, dtype: str) -> NDArray[Any]:
    """Memory-map a file as a vector.

    Raises:
        StorageError: it cannot be read.
    """
    with open_regular(path) as file:
        try:
            if os.fstat(file.fileno()).st_size == 0:  # mmap refuses an empty file
                return np.empty(0, dtype)
            return np.memmap(file, dtype, "r")
        except (OSError, ValueError) as error:
            raise StorageError(f"cannot read {path}: {error}") from error


def round_up(size: Index | int, step: int) -> Index:
    """Round up to a multiple of `step`."""
    return -(-np.asarray(size) // step) * step
