"""Kernels in Triton for what torch would do in several passes over memory.

Nothing needs them: without a GPU, or without Triton, plain code beside each call gives the same.
"""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor


def fused(x: Tensor) -> bool:
    """Whether to use the kernels for a tensor: it is on a GPU, of at most 32 bits, and Triton is there."""
    return x.is_cuda and x.dtype != torch.float64 and _triton()


@cache
def _triton() -> bool:
    return find_spec("triton") is not None
