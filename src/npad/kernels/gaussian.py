"""Draw Gaussian noise and add it in one pass, with the same numbers as `npad.noise.random`."""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from npad import kernels

GOLDEN = tl.constexpr(kernels.GOLDEN)
FIRST = tl.constexpr(kernels.FIRST)
SECOND = tl.constexpr(kernels.SECOND)
TURN = tl.constexpr(2 * math.pi)
STEP = tl.constexpr(2.0**-23)
ROWS, PAIRS = 8, 64  # rows, and pairs of columns, per block


def add_gaussian(x: Tensor, scales: Tensor, seed: int, fields: list[Tensor], site: int) -> Tensor:
    """Return x [rows, width] plus normal noise of standard deviation scales [rows].

    Args:
        x: [rows, width].
        scales: [rows].
        seed: the seed, part of every row's key.
        fields: ids, chains, steps and slots, [rows] each, the rest of the key but the site.
        site: the hash of the noise site.
    """
    rows, width = x.shape
    out = torch.empty_strided((rows, width), (width, 1), dtype=x.dtype, device=x.device)
    columns = (width + 1) // 2
    strides = [field.stride(0) for field in (scales, *fields)]
    _add_gaussian[(triton.cdiv(rows, ROWS), triton.cdiv(columns, PAIRS))](
        x,
        out,
        scales,
        *fields,
        seed,
        site,
        rows,
        width,
        columns,
        *x.stride(),
        *strides,
        ROWS=ROWS,
        PAIRS=PAIRS,
    )
    return out


@triton.jit
def _mix(z):
    z = (z ^ ((z >> 30) & 0x3FFFFFFFF)) * FIRST
    z = (z ^ ((z >> 27) & 0x1FFFFFFFFF)) * SECOND
    return z ^ ((z >> 31) & 0x1FFFFFFFF)


@triton.jit
def _fold(key, field):
    return _mix((key ^ field) + GOLDEN)


@triton.jit(do_not_specialize=["seed", "site"])
def _add_gaussian(
    x, out, scales, ids, chains, steps, slots, seed, site, rows, width, columns,
    row_stride, column_stride,
    scales_stride, ids_stride, chains_stride, steps_stride, slots_stride,
    ROWS: tl.constexpr, PAIRS: tl.constexpr,  # noqa: N803
):  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    real = row < rows
    key = _fold(tl.zeros([ROWS], tl.int64), seed.to(tl.int64))
    key = _fold(key, tl.load(ids + row * ids_stride, real, other=0))
    key = _fold(key, tl.load(chains + row * chains_stride, real, other=0))
    key = _fold(key, tl.load(steps + row * steps_stride, real, other=0))
    key = _fold(key, tl.load(slots + row * slots_stride, real, other=0))
    key = _fold(key, site.to(tl.int64))
    scale = tl.load(scales + row * scales_stride, real, other=0.0).to(tl.float32)

    pair = tl.program_id(1) * PAIRS + tl.arange(0, PAIRS)
    bits = _mix(key[:, None] + ((pair + 1).to(tl.int64) * GOLDEN)[None, :])
    low = (((bits >> 9) & 0x7FFFFF).to(tl.float32) + 0.5) * STEP
    high = (((bits >> 41) & 0x7FFFFF).to(tl.float32) + 0.5) * STEP
    angle, distance = low * TURN, tl.sqrt(tl.log(high) * -2.0) * scale[:, None]

    row = row.to(tl.int64)[:, None]
    # The pair's two numbers go to column `pair` and to column `pair + columns`.
    inside = real[:, None] & (pair < columns)[None, :]
    left = (
        tl.load(x + row * row_stride + pair[None, :] * column_stride, inside).to(tl.float32)
        + tl.cos(angle) * distance
    )
    tl.store(out + row * width + pair[None, :], left.to(out.dtype.element_ty), inside)
    pair += columns
    inside = real[:, None] & (pair < width)[None, :]
    right = (
        tl.load(x + row * row_stride + pair[None, :] * column_stride, inside).to(tl.float32)
        + tl.sin(angle) * distance
    )
    tl.store(out + row * width + pair[None, :], right.to(out.dtype.element_ty), inside)
