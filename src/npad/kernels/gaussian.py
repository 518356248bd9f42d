"""Noise drawn where it is added: from keys to sums in one pass, with the numbers that `npad.noise.random` draws."""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from npad.kernels import splitmix64

GOLDEN = tl.constexpr(splitmix64.GOLDEN)
FIRST = tl.constexpr(splitmix64.FIRST)
SECOND = tl.constexpr(splitmix64.SECOND)
TURN = tl.constexpr(2 * math.pi)
STEP = tl.constexpr(2.0**-23)
ROWS, PAIRS = 8, 64  # of a block


def add_gaussian(x: Tensor, scales: Tensor, seed: int, fields: list[Tensor], site: int) -> Tensor:
    """Return x [rows, width] plus normal noise of standard deviation scales [rows].

    seed, fields (four of [rows]: ids, chains, steps, slots) and site are the key of each row.
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
    row_stride, stride, of_scales, of_ids, of_chains, of_steps, of_slots,
    ROWS: tl.constexpr, PAIRS: tl.constexpr,  # noqa: N803
):  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    real = row < rows
    key = _fold(tl.zeros([ROWS], tl.int64), seed.to(tl.int64))
    key = _fold(key, tl.load(ids + row * of_ids, real, other=0))
    key = _fold(key, tl.load(chains + row * of_chains, real, other=0))
    key = _fold(key, tl.load(steps + row * of_steps, real, other=0))
    key = _fold(key, tl.load(slots + row * of_slots, real, other=0))
    key = _fold(key, site.to(tl.int64))
    scale = tl.load(scales + row * of_scales, real, other=0.0).to(tl.float32)

    pair = tl.program_id(1) * PAIRS + tl.arange(0, PAIRS)
    bits = _mix(key[:, None] + ((pair + 1).to(tl.int64) * GOLDEN)[None, :])
    near = (((bits >> 9) & 0x7FFFFF).to(tl.float32) + 0.5) * STEP
    far = (((bits >> 41) & 0x7FFFFF).to(tl.float32) + 0.5) * STEP
    angle, distance = near * TURN, tl.sqrt(tl.log(far) * -2.0) * scale[:, None]

    row = row.to(tl.int64)[:, None]
    here = real[:, None] & (pair < columns)[None, :]
    one = (
        tl.load(x + row * row_stride + pair[None, :] * stride, here).to(tl.float32)
        + tl.cos(angle) * distance
    )
    tl.store(out + row * width + pair[None, :], one.to(out.dtype.element_ty), here)
    pair += columns
    here = real[:, None] & (pair < width)[None, :]
    other = (
        tl.load(x + row * row_stride + pair[None, :] * stride, here).to(tl.float32)
        + tl.sin(angle) * distance
    )
    tl.store(out + row * width + pair[None, :], other.to(out.dtype.element_ty), here)
