"""The state of a decoder with the cache of transformers, which grows with every token."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from npad.model import Layout
from npad.search.rows import repeat


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
