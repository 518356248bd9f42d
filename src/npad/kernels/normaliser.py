"""One pass over the logits: what normalises each row, its most probable symbol, and the largest of each chunk."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

MANY = 1024  # rows, of which a multiprocessor has several at a time


def normaliser(logits: Tensor, chunk: int = 64) -> tuple[Tensor, Tensor, Tensor]:
    """log Σ exp of each row of [rows, V] in float32, the first of its largest symbols, and the largest of its chunks.

    The normaliser is NaN where a row has none; the chunks are of `chunk` symbols, [rows, ⌈V / chunk⌉].
    """
    rows, symbols = logits.shape
    norm = torch.empty(rows, dtype=torch.float32, device=logits.device)
    best = torch.empty(rows, dtype=torch.long, device=logits.device)
    peaks = torch.empty(rows, triton.cdiv(symbols, chunk), dtype=logits.dtype, device=logits.device)
    most, warps = (2048, 4) if rows > MANY else (4096, 8)
    block = max(chunk, min(most, triton.next_power_of_2(symbols)))
    _normaliser[(rows,)](
        logits, norm, best, peaks, symbols, peaks.shape[1], logits.stride(0),
        BLOCK=block, CHUNK=chunk, num_warps=warps,
    )  # fmt: skip
    return norm, best, peaks


@triton.jit
def _normaliser(
    logits, norm, best, peaks, symbols, chunks, stride, BLOCK: tl.constexpr, CHUNK: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, BLOCK)
    largest = -float("inf")
    where = 0
    total = 0.0
    for start in range(0, symbols, BLOCK):
        x = tl.load(
            logits + row * stride + start + lane, mask=start + lane < symbols, other=-float("inf")
        )
        x = x.to(tl.float32)
        peak = tl.max(tl.reshape(x, [BLOCK // CHUNK, CHUNK]), 1)
        chunk = start // CHUNK + tl.arange(0, BLOCK // CHUNK)
        tl.store(peaks + row * chunks + chunk, peak.to(peaks.dtype.element_ty), mask=chunk < chunks)
        top = tl.max(peak, 0)
        first = start + tl.min(tl.where(x == top, lane, BLOCK), 0)
        where = tl.where(top > largest, first, where)
        new = tl.where(top > largest, top, largest)
        from_ = tl.where(new == -float("inf"), 0.0, new)
        total = total * tl.exp(largest - from_) + tl.sum(tl.exp(x - from_), 0)
        largest = new
    from_ = tl.where(largest == -float("inf"), 0.0, largest)
    whole = tl.log(total) + from_
    tl.store(norm + row, tl.where(whole == -float("inf"), float("nan"), whole))
    tl.store(best + row, tl.minimum(where, symbols - 1).to(tl.int64))
