"""The k best symbols of each row in one pass over the chunks that can hold them."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

NEVER = tl.constexpr(-(2**31))  # below the key of −inf


def top(logits: Tensor, peaks: Tensor, k: int, chunk: int = 64) -> tuple[Tensor, Tensor]:
    """The k largest of logits [..., V] in float32, the best first and of equals the first, and their symbols.

    peaks [..., ⌈V / chunk⌉]: the largest of every `chunk` symbols. The k best are in the k chunks with the best best,
    which one warp holds in its registers: so k must not be large.
    """
    shape, symbols = logits.shape[:-1], logits.shape[-1]
    logits, peaks = logits.reshape(-1, symbols), peaks.reshape(-1, peaks.shape[-1])
    values = torch.empty(*shape, k, dtype=torch.float32, device=logits.device)
    chosen = torch.empty(*shape, k, dtype=torch.long, device=logits.device)
    if len(logits):
        _top[len(logits),](
            logits, peaks, values, chosen, symbols, peaks.shape[1], logits.stride(0), peaks.stride(0),
            K=k, WIDTH=triton.next_power_of_2(k), CHUNK=chunk, CHUNKS=triton.next_power_of_2(peaks.shape[1]),
            num_warps=1,
        )  # fmt: skip
    return values, chosen


@triton.jit
def _key(x):
    """An integer that is the larger, the larger the number."""
    bits = x.to(tl.float32).to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def _top(
    logits, peaks, values, chosen, symbols, chunks, of_logits, of_peaks,
    K: tl.constexpr, WIDTH: tl.constexpr, CHUNK: tl.constexpr, CHUNKS: tl.constexpr,  # noqa: N803
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    number, place = tl.arange(0, CHUNKS), tl.arange(0, WIDTH)
    best = _key(tl.load(peaks + row * of_peaks + number, number < chunks, other=-float("inf")))
    best = tl.where(number < chunks, best, NEVER)
    picked = tl.zeros([WIDTH], dtype=tl.int32)
    for i in range(K):
        one = tl.min(tl.where(best == tl.max(best, 0), number, CHUNKS), 0)
        picked = tl.where(place == i, one, picked)
        best = tl.where(number == one, NEVER, best)
    symbol = tl.reshape(picked[:, None] * CHUNK + tl.arange(0, CHUNK)[None, :], [WIDTH * CHUNK])
    there = (tl.arange(0, WIDTH * CHUNK) < K * CHUNK) & (symbol < symbols)
    key = _key(tl.load(logits + row * of_logits + symbol, there, other=-float("inf")))
    key = tl.where(there, key, NEVER)
    for i in range(K):
        largest = tl.max(key, 0)
        one = tl.min(tl.where(key == largest, symbol, 2147483647), 0)
        bits = largest ^ ((largest >> 31) & 0x7FFFFFFF)
        tl.store(values + row * K + i, bits.to(tl.float32, bitcast=True))
        tl.store(chosen + row * K + i, one.to(tl.int64))
        key = tl.where(symbol == one, NEVER, key)
