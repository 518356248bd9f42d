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
