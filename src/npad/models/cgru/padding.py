"""Units rounded up to what a GPU's matrix units take in one go: without it 1028 of them run at half the speed of 1032.

The extra units are zero: no weight leads in or out, so they stay zero, their gradients too, and nobody sees them.
"""

from __future__ import annotations

import torch
from torch import Tensor

MULTIPLE = 8  # of bfloat16 numbers
LEAST = 256  # units from which it matters


def aligned(units: int) -> int:
    """The width at which so many units are held."""
    return units if units < LEAST else -(-units // MULTIPLE) * MULTIPLE


def real(size: int, blocks: int, units: int, width: int) -> Tensor:
    """The places of a dimension that are not padding: it is `blocks` times the width, and the rest after the first."""
    rest = size - blocks * width
    sizes = [rest] if blocks == 0 else [width, rest, *[width] * (blocks - 1)]
    keep = [rest] if blocks == 0 else [units, rest, *[units] * (blocks - 1)]
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    return torch.cat(
        [torch.arange(start, start + kept) for start, kept in zip(starts, keep, strict=True)]
    )
