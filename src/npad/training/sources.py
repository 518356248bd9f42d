"""Sources of training pairs, memory-mapped: sentences, pictures, sounds.

Pictures and sounds are stored once, whatever the number of their texts:

  source.items     the picture or sound of each pair (int64)
  source.pixels    all pictures, [pictures, 3, size, size] (uint8)
  source.cells     or their features by a frozen network, [pictures, cells, channels] (float16)
  source.frames    all sounds one after another, [frames, bins] (float16)
  source.ends      the frame at which each sound ends (int64)
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from npad.errors import StorageError
from npad.models.encoders.sound import STRIDE
from npad.storage.regular import open_regular

Index = NDArray[np.int64]
# Positions of a sound are rounded up to so many times a text's step: sounds are longer, and every
# shape is captured as a graph.
SOUND_STEPS = 8


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

    @classmethod
    def open(cls, folder: Path, pairs: int, part: str, dtype: str, shape: tuple[int, ...]) -> Self:
        """Memory-map the pictures of a split.

        Args:
            folder: of the split.
            pairs: of the split.
            part: "pixels" or "cells".
            dtype: of the part.
            shape: of a picture's.

        Raises:
            StorageError: a file cannot be read, or does not fit.
        """
        flat = mapped(folder / f"source.{part}", dtype)
        if len(flat) % math.prod(shape):
            raise StorageError(f"{folder}/source.{part} is damaged: {len(flat):,} numbers")
        pictures = flat.reshape(-1, *shape)
        cells = shape[0] if part == "cells" else max(1, (shape[1] // 8) ** 2)
        return cls(pictures, _items(folder, pairs, len(pictures)), cells)


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

    @classmethod
    def open(cls, folder: Path, pairs: int, bins: int) -> Self:
        """Memory-map the sounds of a split.

        Raises:
            StorageError: a file cannot be read, or does not fit.
        """
        frames = mapped(folder / "source.frames", "float16")
        ends = mapped(folder / "source.ends", "int64")
        rising = len(ends) > 0 and ends[0] > 0 and bool((ends[1:] > ends[:-1]).all())
        if not rising or len(frames) != bins * int(ends[-1]):
            raise StorageError(f"{folder}/source.ends is damaged: it does not fit source.frames")
        return cls(frames.reshape(-1, bins), ends, _items(folder, pairs, len(ends)))


def _items(folder: Path, pairs: int, count: int) -> NDArray[np.int64]:
    """Memory-map the number of each pair's picture or sound, one of `count`."""
    items = mapped(folder / "source.items", "int64")
    if len(items) != pairs or items.min() < 0 or items.max() >= count:
        reason = f"it must have {pairs:,} numbers below {count:,}"
        raise StorageError(f"{folder}/source.items is damaged: {reason}")
    return items


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
