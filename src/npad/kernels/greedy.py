"""A step of greedy search in one kernel: choose tokens, update scores, lengths and history."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 128  # rows per block


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
        best.reshape(rows), flat_logits, norm.reshape(rows),
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
