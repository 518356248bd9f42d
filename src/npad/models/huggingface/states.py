"""States of a decoder: with the cache of transformers, which grows, or in tensors of fixed size.

A cache of transformers grows with every token: no two steps have the same shapes, and a CUDA graph
cannot hold them. Tensors of fixed size have room for more tokens than were written, and a mask
hides the rest. What all rows of a sentence read alike, the source or the prompt, is held once per
sentence.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers.cache_utils import Cache, DynamicLayer, StaticLayer

from npad.model import Layout
from npad.models.huggingface.shared_attention import LENGTH, PROMPT, Prompt
from npad.rows import repeat

# Capacities in tokens. A CUDA graph is captured for each: multiples by powers of two. A CPU has no
# graphs, and pays for every column.
SMALLEST_CAPACITY = 32
CPU_CAPACITY = 8


@dataclass(frozen=True)
class CachedState:
    """The state of a decoder: its cache. It has read its prefix except for the last token."""

    cache: Any  # [rows], keys and values of the tokens read
    last: Tensor  # [rows], the prefix's last token, read in place of the begin token
    mask: Tensor  # [rows, tokens read], 0 where the prefix is padding
    layout: Layout
    read: int = 0  # tokens read after the prefix
    cross: Any = None  # [sentences], keys and values of the encoder's outputs
    row_cross: Any = None  # [rows], the same, expanded to rows
    source_mask: Tensor | None = None  # [sentences, length], 0 where the source is padding
    example: Any = None  # [sentences], a cache that is not empty: it shows the shapes of layers

    def select(self, rows: Tensor, dtype: torch.dtype) -> CachedState:
        """Return rows of the state with keys and values in a precision."""
        layout, sentences = self.layout.after(rows)
        chosen = replace(
            self,
            cache=select_cache(self.cache, rows, dtype),
            last=self.last[rows],
            mask=self.mask[rows],
            layout=layout,
            example=None,
        )
        if self.cross is None or layout == self.layout:
            return chosen
        cross, source_mask = self.cross, self.source_mask
        if sentences is not None:
            cross = select_cache(cross, sentences, dtype)
            source_mask = None if source_mask is None else source_mask[sentences]
        row_cross = cross
        if layout.each > 1:
            row_cross = select_cache(cross, repeat(*layout, rows.device), dtype)
        return replace(chosen, cross=cross, row_cross=row_cross, source_mask=source_mask)

    def clone(self) -> CachedState:
        return replace(self, cache=select_cache(self.cache))


def select_cache(cache: Any, rows: Tensor | None = None, dtype: torch.dtype | None = None) -> Any:
    """Return rows of a cache as a cache that later steps do not share.

    Args:
        cache: of transformers.
        rows: None: all of them.
        dtype: of its keys and values; None: as they are.
    """
    selected = copy.copy(cache)
    selected.layers = [copy.copy(layer) for layer in cache.layers]
    for layer in selected.layers if rows is not None else ():
        layer.reorder_cache(rows)
    for layer in selected.layers if dtype is not None else ():
        if getattr(layer, "keys", None) is not None:
            layer.keys, layer.values = layer.keys.to(dtype), layer.values.to(dtype)
    return selected


@dataclass(frozen=True)
class KeyValues:
    """The keys and values of the tokens that each row has read by itself."""

    layers: tuple[Tensor, ...]  # [2, heads, rows, capacity, width] each: keys and values
    length: Tensor  # [], tokens written, which are written in place

    @property
    def capacity(self) -> int:
        return self.layers[0].shape[3]

    def select(self, rows: Tensor) -> KeyValues:
        return self._map(lambda layer: layer.index_select(2, rows))

    def clone(self) -> KeyValues:
        return self._map(torch.clone)

    def with_capacity(self, capacity: int) -> KeyValues:
        """Return the same tokens with room for `capacity` of them."""
        return self._map(lambda layer: pad(layer, (0, 0, 0, capacity - self.capacity)))

    def _map(self, function: Callable[[Tensor], Tensor]) -> KeyValues:
        return KeyValues(tuple(map(function, self.layers)), self.length.clone())

    def columns(self, tokens: int) -> Tensor:
        """Return where the next tokens are written, [tokens]."""
        return torch.arange(tokens, device=self.length.device) + self.length

    def as_cache(self, tokens: int, prompt: SharedKeyValues | None) -> Cache:
        """Return a cache of transformers that writes the next tokens to these tensors.

        Args:
            tokens: how many.
            prompt: what rows read before, if it is not among these tensors.
        """
        columns = self.columns(tokens)
        layers = [
            FixedLayer(keys, values, self.length, columns)
            for keys, values in (layer.transpose(1, 2).unbind() for layer in self.layers)
        ]
        for layer in layers:
            setattr(layer.keys, LENGTH, self.length)
        for layer, keys_and_values in zip(layers, prompt.layers if prompt else (), strict=False):
            setattr(layer.keys, PROMPT, Prompt(*keys_and_values))
        return Cache(layers=layers)


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
class SharedKeyValues:
    """The keys and values that all rows of a sentence read, held once."""

    layers: tuple[Tensor, ...]  # [2, heads, sentences, length, width] each: keys and values
    hidden: Tensor | None  # [sentences, 1, 1, length], added to scores: padding is hidden

    @classmethod
    def of(cls, layers: tuple[Tensor, ...], mask: Tensor | None) -> SharedKeyValues:
        """Take keys and values with a mask [sentences, length], 0 where they are padding."""
        if mask is None:
            return cls(layers, None)
        hidden = torch.zeros_like(mask, dtype=layers[0].dtype)
        hidden = hidden.masked_fill(mask == 0, lowest_score(hidden.dtype))
        return cls(layers, hidden[:, None, None])

    @property
    def length(self) -> int:
        return self.layers[0].shape[3]

    def select(self, sentences: Tensor | None) -> SharedKeyValues:
        """Return the given sentences; None: all."""
        if sentences is None:
            return self
        hidden = None if self.hidden is None else self.hidden[sentences]
        return SharedKeyValues(tuple(x.index_select(2, sentences) for x in self.layers), hidden)

    def as_cache(self) -> Cache:
        """Return a cache of transformers for cross-attention."""
        layers = []
        for keys_and_values in self.layers:
            layer = DynamicLayer()
            keys, values = keys_and_values.transpose(1, 2).unbind()
            layer.keys, layer.values = keys, values
            layer.dtype, layer.device, layer.is_initialized = keys.dtype, keys.device, True
            layers.append(layer)
        return Cache(layers=layers)


@dataclass(frozen=True)
class FixedState:
    """The state of a decoder in tensors of fixed size, after its prefix except the last token."""

    own: KeyValues  # of the tokens that each row has read, with an encoder–decoder's prefix
    shared: SharedKeyValues  # of the encoder's outputs, or of a decoder-only model's prompt
    last: Tensor  # [rows], the prefix's last token, read in place of the begin token
    before: Tensor  # [rows], tokens that were read before its own: those of a prompt
    layout: Layout
    prefix: int  # tokens that `own` held at the start
    padded: int  # tokens before its own, with padding

    @classmethod
    def of(cls, state: CachedState, cache: Any) -> FixedState:
        """Return a state that has read nothing but its prefix, with keys and values of a cache."""
        tokens, each = state.mask.shape[1], state.layout.each
        layers, before = stacked(cache, tokens), state.mask.sum(1)
        if state.cross is not None:
            shared = SharedKeyValues.of(stacked(state.cross), state.source_mask)
            own, before, prefix = layers, torch.zeros_like(before), tokens
        else:
            prompts = tuple(layer[:, :, ::each].contiguous() for layer in layers)
            shared = SharedKeyValues.of(prompts, state.mask[::each])
            own, prefix = tuple(layer[:, :, :, :0] for layer in layers), 0
        # The length is made without a copy from the host, which a CUDA graph could not capture.
        length = torch.full((), prefix, device=state.last.device)
        return cls(
            own=KeyValues(own, length),
            shared=shared,
            last=state.last,
            before=before,
            layout=state.layout,
            prefix=prefix,
            padded=tokens - prefix,
        )

    @property
    def most_before(self) -> int:
        """The most tokens that a row has read before its own."""
        return int(self.before.max())

    def select(self, rows: Tensor) -> FixedState:
        layout, sentences = self.layout.after(rows)
        return replace(
            self,
            own=self.own.select(rows),
            shared=self.shared.select(sentences),
            last=self.last[rows],
            before=self.before[rows],
            layout=layout,
        )

    def clone(self) -> FixedState:
        return replace(self, own=self.own.clone())

    def reserve(self, tokens: int) -> FixedState:
        """Return a state with room for `tokens` after the prefix."""
        capacity = capacity_for(self.prefix + tokens, self.last.device)
        if capacity <= self.own.capacity:
            return self
        return replace(self, own=self.own.with_capacity(capacity))

    def positions(self, tokens: int) -> Tensor:
        """Return the positions of the next tokens, [rows, tokens]."""
        return self.before[:, None] + self.own.columns(tokens)

    def hidden(self, tokens: int) -> Tensor:
        """Return what is added to the scores of a row's own columns, [1, 1, tokens, capacity].

        None of the next tokens reads a later one, nor a column that has not been written.
        """
        columns = torch.arange(self.own.capacity, device=self.last.device)
        unread = columns > self.own.columns(tokens)[:, None]
        dtype = self.own.layers[0].dtype
        hidden = torch.zeros(unread.shape, dtype=dtype, device=unread.device)
        return hidden.masked_fill(unread, lowest_score(dtype))[None, None]

    def hidden_after_prompt(self, tokens: int) -> Tensor:
        """Return the same for the prompt's columns and its own, [sentences, 1, tokens, both]."""
        assert self.shared.hidden is not None
        prompt = self.shared.hidden.expand(-1, -1, tokens, -1)
        return torch.cat([prompt, self.hidden(tokens).expand(len(prompt), -1, -1, -1)], -1)

    def after(self, tokens: int) -> FixedState:
        """Return the state once a model has written `tokens` more."""
        return replace(self, own=replace(self.own, length=self.own.length + tokens))


def stacked(cache: Any, tokens: int | None = None) -> tuple[Tensor, ...]:
    """Return the first tokens of each layer of a cache, [2, heads, rows, tokens, width].

    Args:
        cache: of transformers.
        tokens: how many; None: all.

    Raises:
        TypeError: a layer keeps something else than all keys and values.
    """
    if not all(type(layer) is DynamicLayer for layer in cache.layers):
        raise TypeError("a layer keeps something else than all keys and values")
    return tuple(
        torch.stack([layer.keys, layer.values])[:, :, :, :tokens].transpose(1, 2).contiguous()
        for layer in cache.layers
    )


def lowest_score(dtype: torch.dtype) -> float:
    """Return a score that hides a column, which stays finite if it is converted to bfloat16."""
    return max(-1e30, torch.finfo(dtype).min)


def capacity_for(tokens: int, device: torch.device) -> int:
    """Return the capacity for a number of tokens, rounded up."""
    if device.type == "cpu":
        return tokens + -tokens % CPU_CAPACITY
    capacity = SMALLEST_CAPACITY
    while capacity < tokens:
        capacity *= 2
    return capacity
