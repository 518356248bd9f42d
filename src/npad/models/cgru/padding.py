"""Hidden widths rounded up to a multiple of eight, as a GPU's matrix units need for full speed.

Without padding, 1028 units run at half the speed of 1032. The extra units are zero and have no
weights, so that they and their gradients stay zero, and no output depends on them.
"""

from __future__ import annotations

import torch
from torch import Tensor

WIDTH_MULTIPLE = 8  # units; 16 bytes of bfloat16
MIN_PADDED_UNITS = 256  # units; narrower layers are not padded


def padded_width(units: int) -> int:
    """Return the width at which a layer of `units` units is stored."""
    return units if units < MIN_PADDED_UNITS else -(-units // WIDTH_MULTIPLE) * WIDTH_MULTIPLE


def unpadded_indices(size: int, blocks: int, units: int, width: int) -> Tensor:
    """Return the indices of a parameter's dimension that are not padding.

    The dimension is a block of units, then entries that are never padded, then the other blocks.

    Args:
        size: the length of the dimension.
        blocks: how many padded blocks of units it has.
        units: units of a block.
        width: the length of a padded block.
    """
    unpadded = size - blocks * width
    sizes = [unpadded] if blocks == 0 else [width, unpadded, *[width] * (blocks - 1)]
    kept = [unpadded] if blocks == 0 else [units, unpadded, *[units] * (blocks - 1)]
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    return torch.cat(
        [torch.arange(start, start + count) for start, count in zip(starts, kept, strict=True)]
    )
