"""Models in Marian's binary format, as Firefox's translation models come: named, typed tensors.

A file is a version, a number of items, four numbers per item (length of its name, type, number of
dimensions, bytes), all names, all shapes, padding, and all values. Matrices in int8 lie
[outputs, inputs], whatever their shape says, and end with the factor they were multiplied by.
"""

from __future__ import annotations

import gzip
import io
import math
import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from npad.errors import StorageError
from npad.storage.regular import read_bytes
from npad.validation import brief

MAX_BYTES = 1 << 30  # of a file; Firefox's largest models have 45 MB
MAX_ITEMS = 10_000
MAX_NAME = 256  # bytes
MAX_DIMENSIONS = 4
FLOAT32, INT8_GEMM, TEXT = 0x404, 0x4101, 0x101
OPTIONS = "special:model.yml"
EMBEDDING = "Wemb"  # the end of the names of embeddings, which lie as their shape says
MAX_SHORTLIST_BYTES = 1 << 28  # those of Firefox have 5 MB
SHORTLIST_HEAD = struct.Struct("<6Q")  # magic, checksum, first, best, source tokens + 1, tokens
SHORTLIST_MAGIC = 0xF11A48D5013417F5
ALIGNMENT = "_QuantMultA"  # multipliers of activations, which only 8-bit arithmetic needs


@dataclass(frozen=True)
class MarianFile:
    """The content of a file.

    Attributes:
        weights: float32; matrices as [outputs, inputs], embeddings as [vocabulary, width].
        options: the top level of the model's configuration, values as they are written.
    """

    weights: Mapping[str, Tensor]
    options: Mapping[str, str]


def read_marian(path: Path) -> MarianFile:
    """Read a model; sizes are checked before memory is allocated, and nothing is executed.

    Args:
        path: the file, plain or compressed by gzip.

    Raises:
        StorageError: the file cannot be read, is damaged, or holds types npad does not read.
    """
    content = memoryview(read_unpacked(path, MAX_BYTES))
    try:
        items = _items(content)
    except (struct.error, UnicodeDecodeError, _DamagedError) as error:
        reason = error if isinstance(error, _DamagedError) else "it is cut or of another format"
        raise StorageError(f"{path} is not a valid Marian model: {reason}") from error
    weights, options = {}, {}
    for name, (kind, shape, values) in items.items():
        if name == OPTIONS:
            options = _options(bytes(values))
        elif not name.endswith(ALIGNMENT):
            try:
                weights[name] = _tensor(name, kind, shape, values)
            except _DamagedError as error:
                raise StorageError(f"{path} is not a valid Marian model: {error}") from error
    return MarianFile(weights, options)


@dataclass(frozen=True)
class Shortlist:
    """The target tokens that the browser's engine predicts from, by source token.

    Attributes:
        first: so many tokens of the lowest numbers are in every shortlist.
        places: [source tokens + 1]; those of source token t are tokens[places[t] : places[t + 1]].
        tokens: of all source tokens.
    """

    first: int
    places: Tensor
    tokens: Tensor

    @classmethod
    def read(cls, path: Path, source: int, target: int) -> Shortlist:
        """Read a `lex….s2t.bin` for vocabularies of so many tokens.

        Raises:
            StorageError: the file cannot be read or is damaged.
        """
        content = read_unpacked(path, MAX_SHORTLIST_BYTES)
        head = SHORTLIST_HEAD.unpack_from(content) if len(content) >= SHORTLIST_HEAD.size else ()
        invalid = StorageError(f"{path} is not a shortlist of {source:,} and {target:,} tokens")
        if len(head) != 6 or head[0] != SHORTLIST_MAGIC or head[4] != source + 1:
            raise invalid
        _, _, first, _, starts, count = head
        if first > target or len(content) < SHORTLIST_HEAD.size + 8 * starts + 4 * count:
            raise invalid
        body = bytearray(content[SHORTLIST_HEAD.size :])
        places = torch.frombuffer(body, dtype=torch.int64, count=starts)
        tokens = torch.frombuffer(body, dtype=torch.int32, count=count, offset=8 * starts).long()
        rising = bool((places.diff() >= 0).all()) and int(places[0]) == 0
        inside = bool(((tokens >= 0) & (tokens < target)).all())
        if not (rising and inside and int(places[-1]) == count):
            raise invalid
        return cls(first, places, tokens)

    def allowed(self, source: Sequence[Sequence[int]], target: int) -> Tensor:
        """Return whether each of `target` tokens is in the shortlist of each sentence, [n, target].

        A sentence's own tokens are, as well: names stay as they are.
        """
        flat = torch.tensor([token for tokens in source for token in tokens])
        owner = torch.repeat_interleave(torch.tensor([len(tokens) for tokens in source]))
        starts = self.places[flat]
        counts = self.places[flat + 1] - starts
        shifts = torch.repeat_interleave(starts + counts - counts.cumsum(0), counts)
        allowed = torch.zeros(len(source), target, dtype=torch.bool)
        allowed[:, : self.first] = True
        chosen = self.tokens[torch.arange(len(shifts)) + shifts]
        allowed[torch.repeat_interleave(owner, counts), chosen] = True
        same = flat < target
        allowed[owner[same], flat[same]] = True
        return allowed


class _DamagedError(Exception):
    """What is wrong with a file, in a few words."""


def read_unpacked(path: Path, max_bytes: int) -> bytes:
    """Read a file, and unpack it if it is compressed by gzip, as Mozilla's downloads may be.

    Raises:
        StorageError: the file cannot be read or unpacked, or holds more than `max_bytes`.
    """
    content = read_bytes(path, max_bytes)
    if content[:2] != b"\x1f\x8b":
        return content
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(content)) as file:
            unpacked = file.read(max_bytes + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise StorageError(f"cannot unpack {path}: {error}") from error
    if len(unpacked) > max_bytes:
        raise StorageError(f"cannot unpack {path}: it holds more than {max_bytes:,} bytes")
    return unpacked


Item = tuple[int, tuple[int, ...], memoryview]  # type, shape, values


def _items(content: memoryview) -> dict[str, Item]:
    version, count = struct.unpack_from("<QQ", content)
    if version != 1:
        raise _DamagedError(f"its version is {brief(version)}, not 1")
    if count > MAX_ITEMS:
        raise _DamagedError(f"it claims {count:,} items, more than {MAX_ITEMS:,}")
    heads = [struct.unpack_from("<4Q", content, 16 + 32 * i) for i in range(count)]
    place = 16 + 32 * count
    if any(not 1 <= head[0] <= MAX_NAME or head[2] > MAX_DIMENSIONS for head in heads):
        raise _DamagedError("an item's name is too long or it has too many dimensions")
    names, shapes, items = [], [], {}
    for head in heads:
        names.append(bytes(content[place : place + head[0]]).rstrip(b"\0").decode())
        place += head[0]
    for head in heads:
        shapes.append(struct.unpack_from(f"<{head[2]}i", content, place))
        place += 4 * head[2]
    place += 8 + struct.unpack_from("<Q", content, place)[0]
    for (_, kind, _, size), name, shape in zip(heads, names, shapes, strict=True):
        if name in items:
            raise _DamagedError(f"it holds {brief(name)} twice")
        if place + size > len(content):
            raise _DamagedError(f"it ends within {brief(name)}")
        items[name] = (kind, shape, content[place : place + size])
        place += size
    return items


def _tensor(name: str, kind: int, shape: tuple[int, ...], values: memoryview) -> Tensor:
    """Return an item in float32, matrices as [outputs, inputs]."""
    count = math.prod(shape) if shape and min(shape) > 0 else 0
    is_matrix = len(shape) == 2 and shape[0] > 1
    if kind == FLOAT32 and 0 < 4 * count <= len(values):
        tensor = torch.frombuffer(bytearray(values[: 4 * count]), dtype=torch.float32).view(shape)
        transposed = is_matrix and not name.endswith(EMBEDDING)
    elif kind == INT8_GEMM and count > 0 and count + 4 <= len(values):
        (factor,) = struct.unpack_from("<f", values, count)
        integers = torch.frombuffer(bytearray(values[:count]), dtype=torch.int8)
        if not (math.isfinite(factor) and factor > 0):
            raise _DamagedError(f"the factor of {brief(name)} is {factor}")
        tensor = integers.float().div_(factor)
        tensor = tensor.view(shape if name.endswith(EMBEDDING) else tuple(reversed(shape)))
        transposed = False
    else:
        rule = "npad reads float32 and int8 (intgemm8), complete"
        raise _DamagedError(f"{brief(name)} has type {kind:#x}, {len(values)} bytes; {rule}")
    if not bool(tensor.isfinite().all()):
        raise _DamagedError(f"{brief(name)} holds infinite or undefined numbers")
    if transposed:
        return tensor.T.contiguous()
    return tensor if is_matrix or name.endswith(EMBEDDING) else tensor.flatten()


def _options(text: bytes) -> dict[str, str]:
    """Return `key: value` lines at the top level; lists and nested keys are left out."""
    lines = text.rstrip(b"\0").decode("utf-8", "replace").splitlines()
    pairs = (line.split(":", 1) for line in lines if ":" in line and line[0] not in " -#")
    return {key.strip(): value.strip().strip('"') for key, value in pairs}
