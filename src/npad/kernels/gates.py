"""The gates of a GRU in one pass, from strided slices of larger products."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 512  # units per block


def gates(inputs: Tensor, recurrent: Tensor, old: Tensor) -> Tensor:
    """Return a GRU's new state [rows, units].

    Args:
        inputs: [rows, 3 · units], the input times the input weights, plus bias: reset, update, new.
        recurrent: [rows, 3 · units], the old state times the recurrent weights, plus bias.
        old: [rows, units], the old state.
    """
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
    inputs, recurrent, old, new, units, inputs_stride, recurrent_stride, old_stride,
    BLOCK: tl.constexpr,  # noqa: N803
):  # fmt: skip
    row, unit = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = unit < units
    inputs += row * inputs_stride + unit
    recurrent += row * recurrent_stride + unit
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
    candidate = 2 * tl.sigmoid(2 * x) - 1  # tanh x
    old_state = tl.load(old + row * old_stride + unit, inside).to(tl.float32)
    tl.store(
        new + row * units + unit,
        (candidate + update * (old_state - candidate)).to(new.dtype.element_ty),
        inside,
    )
