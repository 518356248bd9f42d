"""Layers of networks: float32 products split into bfloat16 parts, and the gates of a GRU.

A split product is x w ≈ x₁w₁ + x₁w₂ + x₂w₁ with x₁ = bfloat16(x) and x₂ = bfloat16(x − x₁). It is
one product with three times the columns, plus a few columns for a bias in three parts. Measured on
an H200 against float64, the relative error in norm is 7e-6 (float32: 6e-7, TF32: 3e-4), in a
quarter of float32's time.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 512  # columns or units per block
BIAS_COLUMNS = 8  # three for the bias, padded: products are fastest at widths divisible by 8


def weight_parts(weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return [w₁ | w₂ | w₁ | b₁ b₂ b₃ 0 …] transposed, the right-hand side of a split product.

    Args:
        weight: [out, in].
        bias: [out].

    Returns:
        [3 · in + BIAS_COLUMNS, out] in bfloat16.
    """
    weight_1, weight_2, _ = parts(weight)
    bias_columns = weight_1.new_zeros(len(weight), BIAS_COLUMNS)
    if bias is not None:
        bias_columns[:, :3] = torch.stack(parts(bias), 1)
    return torch.cat([weight_1, weight_2, weight_1, bias_columns], 1).t()


def parts(x: Tensor) -> list[Tensor]:
    """Return three bfloat16 tensors that sum to x."""
    summands = []
    for _ in range(3):
        summands.append(x.to(torch.bfloat16))
        x = x - summands[-1].float()
    return summands


def input_parts(x: Tensor) -> Tensor:
    """Return [x₁ | x₁ | x₂ | 1 …] of x [rows, in]: [rows, 3 · in + BIAS_COLUMNS] in bfloat16."""
    rows, width = x.shape
    out = torch.empty(rows, 3 * width + BIAS_COLUMNS, dtype=torch.bfloat16, device=x.device)
    if rows:
        padded = width + BIAS_COLUMNS
        _input_parts[rows, triton.cdiv(padded, BLOCK)](
            x, out, width, padded, *x.stride(), BLOCK=BLOCK
        )
    return out


@triton.jit
def _input_parts(x, out, width, padded, row_stride, column_stride, BLOCK: tl.constexpr):  # noqa: N803
    row, column = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside, real = column < padded, column < width
    value = tl.load(x + row * row_stride + column * column_stride, real, other=1.0)
    part_1 = value.to(tl.bfloat16)
    part_2 = (value - part_1.to(tl.float32)).to(tl.bfloat16)
    out += row * (2 * width + padded) + column
    tl.store(out, part_1, real)
    tl.store(out + width, part_1, real)
    tl.store(out + 2 * width, tl.where(column < width, part_2, part_1), inside)


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
