"""The normaliser, argmax and chunk maxima of each row of logits, in one pass."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

LARGE_BATCH = 1024  # rows beyond which a multiprocessor runs several blocks at a time


def normaliser(logits: Tensor, chunk: int = 64) -> tuple[Tensor, Tensor, Tensor]:
    """Return the normaliser, the most probable token and the chunk maxima of logits [rows, V].

    Args:
        logits: [rows, V], with a last stride of 1.
        chunk: tokens per chunk.

    Returns:
        log Σ exp of each row [rows] in float32, NaN for invalid logits; the most probable token
        [rows], the first one on ties; the largest logit of each chunk [rows, ⌈V / chunk⌉].
    """
    rows, vocabulary = logits.shape
    norm = torch.empty(rows, dtype=torch.float32, device=logits.device)
    best = torch.empty(rows, dtype=torch.long, device=logits.device)
    peaks = torch.empty(
        rows, triton.cdiv(vocabulary, chunk), dtype=logits.dtype, device=logits.device
    )
    max_block, warps = (2048, 4) if rows > LARGE_BATCH else (4096, 8)
    block = max(chunk, min(max_block, triton.next_power_of_2(vocabulary)))
    _normaliser[(rows,)](
        logits, norm, best, peaks, vocabulary, peaks.shape[1], logits.stride(0),
        BLOCK=block, CHUNK=chunk, num_warps=warps,
    )  # fmt: skip
    return norm, best, peaks


@triton.jit
def _normaliser(
    logits, norm, best, peaks, vocabulary, chunks, stride,
    BLOCK: tl.constexpr, CHUNK: tl.constexpr,  # noqa: N803
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, BLOCK)
    largest = -float("inf")
    argmax = 0
    total = 0.0
    for start in range(0, vocabulary, BLOCK):
        x = tl.load(
            logits + row * stride + start + lane,
            mask=start + lane < vocabulary,
            other=-float("inf"),
        )
        x = x.to(tl.float32)
        peak = tl.max(tl.reshape(x, [BLOCK // CHUNK, CHUNK]), 1)
        chunk = start // CHUNK + tl.arange(0, BLOCK // CHUNK)
        tl.store(peaks + row * chunks + chunk, peak.to(peaks.dtype.element_ty), mask=chunk < chunks)
        top = tl.max(peak, 0)
        first = start + tl.min(tl.where(x == top, lane, BLOCK), 0)
        argmax = tl.where(top > largest, first, argmax)
        new_largest = tl.where(top > largest, top, largest)
        shift = tl.where(new_largest == -float("inf"), 0.0, new_largest)
        total = total * tl.exp(largest - shift) + tl.sum(tl.exp(x - shift), 0)
        largest = new_largest
    shift = tl.where(largest == -float("inf"), 0.0, largest)
    log_sum = tl.log(total) + shift
    tl.store(norm + row, tl.where(log_sum == -float("inf"), float("nan"), log_sum))
    tl.store(best + row, tl.minimum(argmax, vocabulary - 1).to(tl.int64))
