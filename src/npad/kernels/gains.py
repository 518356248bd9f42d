"""Record the clean model's log-probability of the tokens just written, in one kernel."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

BLOCK = 128  # rows per block


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
        flat, norm.reshape(-1), tokens.reshape(-1), rows, gains, ends, step, eos,
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
