"""Triton kernels for operations that take several passes over memory in torch.

They are optional: without a GPU or without Triton, torch code next to each call computes the same.
"""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor


def fused(x: Tensor) -> bool:
    """Return whether to use the kernels for x: on a GPU, at most 32 bits, Triton installed."""
    return x.is_cuda and x.dtype != torch.float64 and _triton()


@cache
def _triton() -> bool:
    return find_spec("triton") is not None


def signed(value: int) -> int:
    """Return a 64-bit pattern as the signed integer that torch stores."""
    value = int(value) & ((1 << 64) - 1)  # int(): a NumPy integer overflows with the mask
    return value - (1 << 64) if value >> 63 else value


# The constants of SplitMix64 (Steele, Lea & Flood, 2014), shared by torch code and kernels.
GOLDEN = signed(0x9E3779B97F4A7C15)
FIRST, SECOND = signed(0xBF58476D1CE4E5B9), signed(0x94D049BB133111EB)
