"""The gates of a GRU in one pass, from slices of larger products as they lie."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 512


def gates(inputs: Tensor, recurrent: Tensor, old: Tensor) -> Tensor:
    """A GRU's new state [rows, units] from what its two matrices made, [rows, 3 · units] each, biases included."""
    rows, units = old.shape
    new = torch.empty_strided((rows, units), (units, 1), dtype=old.dtype, device=old.device)
    strides = inputs.stride(0), recurrent.stride(0), old.stride(0)
    if rows:
        _gates[rows, triton.cdiv(units, BLOCK)](
            inputs, recurrent, old, new, units, *strides, BLOCK=BLOCK
        )
    return new


@triton.jit
def _gates(
    inputs, recurrent, old, new, units, of_inputs, of_recurrent, of_old, BLOCK: tl.constexpr
):
    row, unit = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = unit < units
    inputs += row * of_inputs + unit
    recurrent += row * of_recurrent + unit
    reset = tl.sigmoid(
        tl.load(inputs, inside).to(tl.float32) + tl.load(recurrent, inside).to(tl.float32)
    )
    inputs += units
    recurrent += units
    update = tl.sigmoid(
        tl.load(inputs, inside).to(tl.float32) + tl.load(recurrent, inside).to(tl.float32)
    )
    x = tl.load(inputs + units, inside).to(tl.float32) + reset * tl.load(
        recurrent + units, inside
    ).to(tl.float32)
    fresh = 2 * tl.sigmoid(2 * x) - 1
    before = tl.load(old + row * of_old + unit, inside).to(tl.float32)
    tl.store(
        new + row * units + unit,
        (fresh + update * (before - fresh)).to(new.dtype.element_ty),
        inside,
    )
