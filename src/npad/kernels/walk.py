"""A step of greedy search in one pass: what each row says next, and what that makes of its score."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 128


def walked(
    first: Tensor,
    predicted: tuple[Tensor, Tensor],
    clean: tuple[Tensor, Tensor],
    walk: tuple[Tensor, Tensor, Tensor, Tensor],
    history: Tensor,
    step: Tensor,
    eos: int,
) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor, Tensor], Tensor]:
    """The symbols that rows [groups, width] say next, where they stand after that, and the next step.

    first: the most probable symbols. predicted, clean: logits [groups, width, V] and what normalises them. walk:
    scores, clean scores, lengths, and whether they have ended. history [T, groups, width] takes the symbols at `step`.
    """
    rows, symbols = first.numel(), torch.empty_like(first, memory_format=torch.contiguous_format)
    after = tuple(torch.empty_like(each, memory_format=torch.contiguous_format) for each in walk)
    stepped = torch.empty_like(step)
    logits, clean_logits = (each[0].reshape(rows, -1) for each in (predicted, clean))
    norm, clean_norm, first = (each.reshape(rows) for each in (predicted[1], clean[1], first))
    before = [each.contiguous() for each in walk]
    _walked[max(1, triton.cdiv(rows, BLOCK)),](
        first, logits, norm, clean_logits, clean_norm, *_bytes(*before), history, step,
        symbols, *_bytes(*after), stepped, eos, rows, logits.stride(0), clean_logits.stride(0), BLOCK=BLOCK,
    )  # fmt: skip
    return symbols, after, stepped  # type: ignore[return-value]


def _bytes(scores: Tensor, clean: Tensor, lengths: Tensor, ended: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return scores, clean, lengths, ended.view(torch.uint8)


@triton.jit
def _walked(
    first, logits, norm, clean_logits, clean_norm, scores, clean, lengths, ended, history, step,
    symbols, new_scores, new_clean, new_lengths, new_ended, stepped, eos, rows, of_logits, of_clean,
    BLOCK: tl.constexpr,  # noqa: N803
):  # fmt: skip
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = row < rows
    over = tl.load(ended + row, inside, other=1) != 0
    symbol = tl.where(over, eos, tl.load(first + row, inside, other=0))
    place = row.to(tl.int64)
    gained = tl.load(logits + place * of_logits + symbol, inside, other=0.0).to(tl.float32)
    gained = tl.where(over, 0.0, gained - tl.load(norm + row, inside, other=0.0))
    truly = tl.load(clean_logits + place * of_clean + symbol, inside, other=0.0).to(tl.float32)
    truly = tl.where(over, 0.0, truly - tl.load(clean_norm + row, inside, other=0.0))
    over = over | (symbol == eos)
    at = tl.load(step)
    tl.store(new_scores + row, tl.load(scores + row, inside) + gained, inside)
    tl.store(new_clean + row, tl.load(clean + row, inside) + truly, inside)
    tl.store(new_lengths + row, tl.load(lengths + row, inside) + tl.where(over, 0, 1), inside)
    tl.store(new_ended + row, over.to(tl.uint8), inside)
    tl.store(symbols + row, symbol, inside)
    tl.store(history + at * rows + row, symbol, inside)
    if tl.program_id(0) == 0:
        tl.store(stepped, at + 1)
