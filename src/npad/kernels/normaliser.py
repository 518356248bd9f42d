"""One pass over the logits: what normalises each row, and its most probable symbol."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


def normaliser(logits: Tensor) -> tuple[Tensor, Tensor]:
    """log Σ exp of each row of [rows, V] in float32, NaN where that is no number, and the first of the largest."""
    rows, symbols = logits.shape
    norm = torch.empty(rows, dtype=torch.float32, device=logits.device)
    best = torch.empty(rows, dtype=torch.long, device=logits.device)
    if logits.stride(1) != 1:
        logits = logits.contiguous()
    block = min(4096, triton.next_power_of_2(symbols))
    _normaliser[(rows,)](logits, norm, best, symbols, logits.stride(0), BLOCK=block, num_warps=8)
    return norm, best


@triton.jit
def _normaliser(logits, norm, best, symbols, stride, BLOCK: tl.constexpr):  # noqa: N803
    row = tl.program_id(0)
    lane = tl.arange(0, BLOCK)
    top = tl.full([BLOCK], -float("inf"), tl.float32)  # of each lane: the largest so far, where, and Σ exp(x − it)
    where = lane
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, symbols, BLOCK):
        at = start + lane
        x = tl.load(logits + row.to(tl.int64) * stride + at, mask=at < symbols, other=-float("inf")).to(tl.float32)
        larger = x > top
        new = tl.where(larger, x, top)
        from_ = tl.where(new == -float("inf"), 0.0, new)
        total = total * tl.exp(top - from_) + tl.exp(x - from_)
        where = tl.where(larger, at, where)
        top = new
    largest = tl.max(top, 0)
    from_ = tl.where(largest == -float("inf"), 0.0, largest)
    whole = tl.log(tl.sum(total * tl.exp(top - from_), 0)) + from_
    tl.store(norm + row, tl.where(whole == -float("inf"), float("nan"), whole))
    tl.store(best + row, tl.min(tl.where(top == largest, where, symbols), 0).to(tl.int64))
