"""The k most probable tokens of each row, read only from the chunks that may hold them."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

EMPTY = tl.constexpr(-(2**31))  # a key below that of −inf


def top(logits: Tensor, peaks: Tensor, k: int, chunk: int = 64) -> tuple[Tensor, Tensor]:
    """Return the k largest logits in float32, best first, and their tokens: [..., k] each.

    The k best tokens are in the k chunks with the largest maxima. One warp holds these chunks in
    its registers, so k must be small.

    Args:
        logits: [..., V].
        peaks: [..., ⌈V / chunk⌉], the largest logit of each chunk.
        k: tokens per row; on ties the first token wins.
        chunk: tokens per chunk.
    """
    shape, vocabulary = logits.shape[:-1], logits.shape[-1]
    logits, peaks = logits.reshape(-1, vocabulary), peaks.reshape(-1, peaks.shape[-1])
    values = torch.empty(*shape, k, dtype=torch.float32, device=logits.device)
    chosen = torch.empty(*shape, k, dtype=torch.long, device=logits.device)
    if len(logits):
        _top[len(logits),](
            logits, peaks, values, chosen, vocabulary, peaks.shape[1],
            logits.stride(0), peaks.stride(0),
            K=k, WIDTH=triton.next_power_of_2(k),
            CHUNK=chunk, CHUNKS=triton.next_power_of_2(peaks.shape[1]), num_warps=1,
        )  # fmt: skip
    return values, chosen


@triton.jit
def _key(x):
    """Map a float to an integer of the same order."""
    bits = x.to(tl.float32).to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def _top(
    logits, peaks, values, chosen, vocabulary, chunks, logits_stride, peaks_stride,
    K: tl.constexpr, WIDTH: tl.constexpr, CHUNK: tl.constexpr, CHUNKS: tl.constexpr,  # noqa: N803
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    chunk, place = tl.arange(0, CHUNKS), tl.arange(0, WIDTH)
    peak = _key(tl.load(peaks + row * peaks_stride + chunk, chunk < chunks, other=-float("inf")))
    peak = tl.where(chunk < chunks, peak, EMPTY)
    picked = tl.zeros([WIDTH], dtype=tl.int32)
    for i in range(K):
        best_chunk = tl.min(tl.where(peak == tl.max(peak, 0), chunk, CHUNKS), 0)
        picked = tl.where(place == i, best_chunk, picked)
        peak = tl.where(chunk == best_chunk, EMPTY, peak)
    token = tl.reshape(picked[:, None] * CHUNK + tl.arange(0, CHUNK)[None, :], [WIDTH * CHUNK])
    inside = (tl.arange(0, WIDTH * CHUNK) < K * CHUNK) & (token < vocabulary)
    key = _key(tl.load(logits + row * logits_stride + token, inside, other=-float("inf")))
    key = tl.where(inside, key, EMPTY)
    for i in range(K):
        largest = tl.max(key, 0)
        best_token = tl.min(tl.where(key == largest, token, 2147483647), 0)
        bits = largest ^ ((largest >> 31) & 0x7FFFFFFF)  # the inverse of `_key`
        tl.store(values + row * K + i, bits.to(tl.float32, bitcast=True))
        tl.store(chosen + row * K + i, best_token.to(tl.int64))
        key = tl.where(token == best_token, EMPTY, key)
