"""Keys and values in tensors of fixed size, so that a step can be captured in a CUDA graph.

A cache of transformers grows with every token: no two steps have the same shapes. Here the tensors
have room for more tokens than were written, and a mask hides the rest.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers.cache_utils import Cache, DynamicLayer, StaticLayer

from npad.model import Layout
from npad.search.rows import repeat

SMALLEST_CAPACITY = 32  # tokens; capacities are its multiples by powers of two, so shapes are few


@dataclass(frozen=True)
class KeyValues:
    """The keys and values of every layer, written in place."""

    keys: tuple[Tensor, ...]  # [rows, heads, capacity, width] each
    values: tuple[Tensor, ...]
    length: Tensor  # [], tokens written

    @classmethod
    def of(cls, cache: Any, tokens: int) -> KeyValues:
        """Copy the first tokens of a cache of transformers.

        Raises:
            TypeError: a layer keeps something else than all keys and values.
        """
        if not all(type(layer) is DynamicLayer for layer in cache.layers):
            raise TypeError("a layer keeps something else than all keys and values")
        keys = tuple(layer.keys[:, :, :tokens].clone() for layer in cache.layers)
        values = tuple(layer.values[:, :, :tokens].clone() for layer in cache.layers)
        length = torch.full((), tokens, device=keys[0].device)  # no copy from the host: captured
        return cls(keys, values, length)

    @property
    def capacity(self) -> int:
        return self.keys[0].shape[2]

    def select(self, rows: Tensor) -> KeyValues:
        keys = tuple(layer.index_select(0, rows) for layer in self.keys)
        values = tuple(layer.index_select(0, rows) for layer in self.values)
        return KeyValues(keys, values, self.length.clone())

    def clone(self) -> KeyValues:
        keys, values = (tuple(x.clone() for x in xs) for xs in (self.keys, self.values))
        return KeyValues(keys, values, self.length.clone())

    def with_capacity(self, capacity: int) -> KeyValues:
        """Return the same tokens with room for `capacity` of them."""
        more = (0, 0, 0, capacity - self.capacity)
        keys, values = (tuple(pad(x, more) for x in xs) for xs in (self.keys, self.values))
        return KeyValues(keys, values, self.length)

    def written(self, tokens: int) -> KeyValues:
        """Return the state after a model has written `tokens` more."""
        return KeyValues(self.keys, self.values, self.length + tokens)

    def columns(self, tokens: int) -> Tensor:
        """Return where the next tokens are written, [tokens]."""
        return torch.arange(tokens, device=self.length.device) + self.length

    def as_cache(self, tokens: int) -> Cache:
        """Return a cache of transformers that writes the next tokens to these tensors."""
        columns = self.columns(tokens)
        return Cache(layers=[*self._layers(columns)])

    def _layers(self, columns: Tensor) -> Iterator[FixedLayer]:
        for keys, values in zip(self.keys, self.values, strict=True):
            yield FixedLayer(keys, values, self.length, columns)


class FixedLayer(StaticLayer):  # type: ignore[misc]
    """A layer of a cache that writes to given tensors at given columns."""

    def __init__(self, keys: Tensor, values: Tensor, length: Tensor, columns: Tensor) -> None:
        super().__init__(keys.shape[2])
        self.keys, self.values, self.length, self.columns = keys, values, length, columns
        self.dtype, self.device, self.is_initialized = keys.dtype, keys.device, True

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        self.keys.index_copy_(2, self.columns, key_states)
        self.values.index_copy_(2, self.columns, value_states)
        return self.keys, self.values

    def get_seq_length(self) -> Any:
        return self.length


@dataclass(frozen=True)
class CrossKeyValues:
    """The keys and values of cross-attention: once per sentence, and expanded to rows."""

    keys: tuple[Tensor, ...]  # [sentences, heads, source length, width] each
    values: tuple[Tensor, ...]
    row_keys: tuple[Tensor, ...]  # [rows, …]
    row_values: tuple[Tensor, ...]
    hidden: Tensor | None  # [sentences, 1, 1, source length], added to scores: padding is hidden
    row_hidden: Tensor | None  # [rows, …]

    @classmethod
    def of(cls, cache: Any, source_mask: Tensor | None) -> CrossKeyValues:
        """Take over the cross-attention cache of one row per sentence."""
        keys = tuple(layer.keys for layer in cache.layers)
        values = tuple(layer.values for layer in cache.layers)
        hidden = None
        if source_mask is not None:
            lowest = torch.finfo(keys[0].dtype).min
            hidden = torch.zeros_like(source_mask, dtype=keys[0].dtype)
            hidden = hidden.masked_fill(source_mask == 0, lowest)[:, None, None]
        return cls(keys, values, keys, values, hidden, hidden)

    def select(self, sentences: Tensor | None, layout: Layout) -> CrossKeyValues:
        """Return the given sentences (None: all), expanded to the rows of a layout."""
        keys, values, hidden = self.keys, self.values, self.hidden
        if sentences is not None:
            keys, values = (tuple(x[sentences] for x in xs) for xs in (keys, values))
            hidden = None if hidden is None else hidden[sentences]
        if layout.each == 1:
            return CrossKeyValues(keys, values, keys, values, hidden, hidden)
        rows = repeat(*layout, keys[0].device)
        row_keys, row_values = (tuple(x[rows] for x in xs) for xs in (keys, values))
        row_hidden = None if hidden is None else hidden[rows]
        return CrossKeyValues(keys, values, row_keys, row_values, hidden, row_hidden)

    def as_cache(self) -> Cache:
        """Return a cache of transformers that holds the rows' keys and values."""
        layers = []
        for keys, values in zip(self.row_keys, self.row_values, strict=True):
            layer = DynamicLayer()
            layer.keys, layer.values, layer.is_initialized = keys, values, True
            layer.dtype, layer.device = keys.dtype, keys.device
            layers.append(layer)
        return Cache(layers=layers)


@dataclass(frozen=True)
class FixedState:
    """The state of a decoder in tensors of fixed size. It has read its prefix but its last token.

    Made from a `CachedState` once its prefix has been read.
    """

    cache: KeyValues
    last: Tensor  # [rows], the prefix's last token, read in place of the begin token
    mask: Tensor  # [rows, capacity], 1 where a token may be read
    layout: Layout
    prefix: int  # tokens that the cache held at the start
    cross: CrossKeyValues | None

    def select(self, rows: Tensor) -> FixedState:
        layout, sentences = self.layout.after(rows)
        cross = self.cross
        if cross is not None and layout != self.layout:
            cross = cross.select(sentences, layout)
        cache, last, mask = self.cache.select(rows), self.last[rows], self.mask[rows]
        return FixedState(cache, last, mask, layout, self.prefix, cross)

    def clone(self) -> FixedState:
        return replace(self, cache=self.cache.clone(), mask=self.mask.clone())

    def reserve(self, tokens: int) -> FixedState:
        """Return a state with room for `tokens` after the prefix."""
        capacity = capacity_for(self.prefix + tokens)
        if capacity <= self.cache.capacity:
            return self
        mask = pad(self.mask, (0, capacity - self.cache.capacity))
        return replace(self, cache=self.cache.with_capacity(capacity), mask=mask)

    def reads(self, tokens: int) -> tuple[Tensor, Tensor, FixedState]:
        """Return what hides columns from the next tokens, their positions, and the state after.

        Positions are [rows, tokens].
        """
        columns = self.cache.columns(tokens)
        read = self.mask.sum(1, keepdim=True)
        positions = read + torch.arange(tokens, device=read.device)
        mask = self.mask.index_fill(1, columns, 1)
        hidden = hidden_columns(mask, columns, self.cache.keys[0].dtype)
        return hidden, positions, replace(self, cache=self.cache.written(tokens), mask=mask)


def capacity_for(tokens: int) -> int:
    """Return the capacity for a number of tokens, rounded up to one of few sizes."""
    capacity = SMALLEST_CAPACITY
    while capacity < tokens:
        capacity *= 2
    return capacity


def hidden_columns(mask: Tensor, columns: Tensor, dtype: torch.dtype) -> Tensor:
    """Return what is added to attention scores, [rows, 1, T, capacity].

    Args:
        mask: [rows, capacity], 1 where a token may be read, those being written included.
        columns: [T], where these are written; none reads a later one.
        dtype: of the scores.
    """
    capacity = torch.arange(mask.shape[1], device=mask.device)
    hidden = (mask == 0)[:, None, None, :] | (capacity > columns[:, None])
    lowest = torch.finfo(dtype).min
    return torch.zeros(hidden.shape, dtype=dtype, device=mask.device).masked_fill(hidden, lowest)
