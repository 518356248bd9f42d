"""Noise drawn where it is added: from keys to sums in one pass, with the numbers that `npad.noise.keyed` draws."""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from npad.noise import keyed

GOLDEN = tl.constexpr(keyed.GOLDEN)
FIRST = tl.constexpr(keyed.FIRST)
SECOND = tl.constexpr(keyed.SECOND)
TURN = tl.constexpr(2 * math.pi)
STEP = tl.constexpr(2.0**-23)


def add_gaussian(x: Tensor, scales: Tensor, keys: keyed.Keys) -> Tensor:
    """x [rows, width] and normal numbers of standard deviation scales [rows]."""
    rows, width = x.shape
    out = torch.empty_strided((rows, width), (width, 1), dtype=x.dtype, device=x.device)
    columns = (width + 1) // 2
    block = min(512, triton.next_power_of_2(columns))
    fields = [keys.ids, keys.chains, keys.steps, keys.slots]
    seed, site = keyed.signed(keys.seed), keyed.word(keys.site)
    strides = [field.stride(0) for field in (scales, *fields)]
    grid = (rows, triton.cdiv(columns, block))
    _add_gaussian[grid](
        x, out, scales, *fields, seed, site, width, columns, *x.stride(), *strides, BLOCK=block, num_warps=4
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
    x, out, scales, ids, chains, steps, slots, seed, site, width, columns,
    row_stride, stride, of_scales, of_ids, of_chains, of_steps, of_slots,
    BLOCK: tl.constexpr,  # noqa: N803
):  # fmt: skip
    row = tl.program_id(0)
    key = _fold(tl.zeros([], tl.int64), seed.to(tl.int64))
    key = _fold(key, tl.load(ids + row * of_ids))
    key = _fold(key, tl.load(chains + row * of_chains))
    key = _fold(key, tl.load(steps + row * of_steps))
    key = _fold(key, tl.load(slots + row * of_slots))
    key = _fold(key, site.to(tl.int64))
    scale = tl.load(scales + row * of_scales)

    pair = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    bits = _mix(key + (pair + 1).to(tl.int64) * GOLDEN)
    near = (((bits >> 9) & 0x7FFFFF).to(tl.float32) + 0.5) * STEP
    far = (((bits >> 41) & 0x7FFFFF).to(tl.float32) + 0.5) * STEP
    angle, distance = near * TURN, tl.sqrt(tl.log(far) * -2.0) * scale

    row = row.to(tl.int64)
    first, second = pair < columns, pair + columns < width
    one = tl.load(x + row * row_stride + pair * stride, mask=first).to(tl.float32) + tl.cos(angle) * distance
    tl.store(out + row * width + pair, one.to(out.dtype.element_ty), mask=first)
    pair += columns
    other = tl.load(x + row * row_stride + pair * stride, mask=second).to(tl.float32) + tl.sin(angle) * distance
    tl.store(out + row * width + pair, other.to(out.dtype.element_ty), mask=second)
