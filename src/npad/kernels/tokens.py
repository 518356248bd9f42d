"""From logits to tokens: normalisers, the k most probable tokens, and what searches record."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

LARGE_BATCH = 1024  # rows beyond which a multiprocessor runs several blocks at a time
EMPTY = tl.constexpr(-(2**31))  # a key below that of −inf
BLOCK = 128  # rows per block


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


def greedy_step(
    best: Tensor,
    logits: Tensor,
    norm: Tensor,
    scores: Tensor,
    lengths: Tensor,
    finished: Tensor,
    history: Tensor,
    step: Tensor,
    eos: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Take the most probable token of each row; a finished row repeats the end token.

    Args:
        best: [groups, width], the most probable tokens.
        logits: [groups, width, V].
        norm: [groups, width], their normalisers.
        scores: [groups, width], the log-probability so far.
        lengths: [groups, width], tokens so far, without the end token.
        finished: [groups, width].
        history: [T, groups, width], written in place at `step`.
        step: [1], the number of steps written so far.
        eos: the end token.

    Returns:
        The new tokens, scores, lengths, finished [groups, width] and step [1].
    """
    rows = best.numel()
    tokens, new_scores, new_lengths, new_finished = (
        torch.empty_like(x, memory_format=torch.contiguous_format)
        for x in (best, scores, lengths, finished)
    )
    next_step = torch.empty_like(step)
    flat_logits = logits.reshape(rows, -1)
    _greedy_step[max(1, triton.cdiv(rows, BLOCK)),](
        best.contiguous(), flat_logits, norm.contiguous(),
        scores.contiguous(), lengths.contiguous(), finished.contiguous().view(torch.uint8),
        history, step,
        tokens, new_scores, new_lengths, new_finished.view(torch.uint8), next_step,
        eos, rows, flat_logits.stride(0), BLOCK=BLOCK,
    )  # fmt: skip
    return tokens, new_scores, new_lengths, new_finished, next_step


@triton.jit
def _greedy_step(
    best, logits, norm, scores, lengths, finished, history, step,
    tokens, new_scores, new_lengths, new_finished, next_step, eos, rows, logits_stride,
    BLOCK: tl.constexpr,  # noqa: N803
):  # fmt: skip
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = row < rows
    ended = tl.load(finished + row, inside, other=1) != 0
    token = tl.where(ended, eos, tl.load(best + row, inside, other=0))
    wide_row = row.to(tl.int64)  # times the stride, it may exceed 32 bits
    gain = tl.load(logits + wide_row * logits_stride + token, inside, other=0.0).to(tl.float32)
    gain = tl.where(ended, 0.0, gain - tl.load(norm + row, inside, other=0.0))
    ended = ended | (token == eos)
    at = tl.load(step)
    tl.store(new_scores + row, tl.load(scores + row, inside) + gain, inside)
    tl.store(new_lengths + row, tl.load(lengths + row, inside) + tl.where(ended, 0, 1), inside)
    tl.store(new_finished + row, ended.to(tl.uint8), inside)
    tl.store(tokens + row, token, inside)
    tl.store(history + at * rows + row, token, inside)
    if tl.program_id(0) == 0:
        tl.store(next_step, at + 1)


def record_gains(
    logits: Tensor,
    norm: Tensor,
    tokens: Tensor,
    rows: Tensor | None,
    gains: Tensor,
    ends: Tensor | None,
    step: Tensor,
    eos: int,
) -> None:
    """Write log p of the tokens, and of the end token, into row `step − 1` of two histories.

    Args:
        logits: [groups, width before the step, V], of the clean model.
        norm: [groups, width before the step], their normalisers.
        tokens: [groups, width], the tokens just written.
        rows: [groups · width], the row that each row continues; None: the same row.
        gains: [T, groups, width], the output for log p of the tokens.
        ends: [T, groups, width], the output for log p of the end token in each slot before the
            step, or None; a single slot is repeated to the width.
        step: [1], the number of steps written so far, the last one included.
        eos: the end token.
    """
    groups, width = tokens.shape
    old_width = norm.shape[1]
    count = groups * width
    flat = logits.reshape(groups * old_width, -1)
    _record_gains[max(1, triton.cdiv(count, BLOCK)),](
        flat, norm.contiguous(), tokens.contiguous(), rows, gains, ends, step, eos,
        count, width, old_width, flat.stride(0), BLOCK=BLOCK,
    )  # fmt: skip


@triton.jit
def _record_gains(
    logits, norm, tokens, rows, gains, ends, step, eos, count, width, old_width, logits_stride,
    BLOCK: tl.constexpr,  # noqa: N803
):  # fmt: skip
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = place < count
    same_row = (place // width) * old_width + tl.minimum(place % width, old_width - 1)
    row = same_row.to(tl.int64) if rows is None else tl.load(rows + place, inside, other=0)
    token = tl.load(tokens + place, inside, other=0)
    gain = tl.load(logits + row * logits_stride + token, inside, other=0.0).to(tl.float32)
    gain -= tl.load(norm + row, inside, other=0.0)
    at = (tl.load(step) - 1) * count + place
    tl.store(gains + at, gain.to(gains.dtype.element_ty), inside)
    if ends is not None:
        end = tl.load(logits + same_row.to(tl.int64) * logits_stride + eos, inside, other=0.0)
        end = end.to(tl.float32) - tl.load(norm + same_row, inside, other=0.0)
        tl.store(ends + at, end.to(ends.dtype.element_ty), inside)
