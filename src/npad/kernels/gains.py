"""What the clean model gave the tokens just written, and ending instead: one pass over the rows."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

BLOCK = 128


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
        tokens: [groups, width], what was written.
        rows: [groups · width], the row that each continues; None: its own.
        gains: [T, groups, width], takes log p of the tokens.
        ends: [T, groups, width], takes log p of the end token in each slot before the step, if
            given; where there was one slot, all take its value.
        step: [1], steps written so far, the last one included.
        eos: the end token.
    """
    groups, width = tokens.shape
    before = norm.shape[1]
    count = groups * width
    flat = logits.reshape(groups * before, -1)
    _record_gains[max(1, triton.cdiv(count, BLOCK)),](
        flat, norm.reshape(-1), tokens.reshape(-1), rows, gains, ends, step, eos,
        count, width, before, flat.stride(0), BLOCK=BLOCK,
    )  # fmt: skip


@triton.jit
def _record_gains(
    logits, norm, tokens, rows, gains, ends, step, eos, count, width, before, logits_stride,
    BLOCK: tl.constexpr,  # noqa: N803
):  # fmt: skip
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = place < count
    own = (place // width) * before + tl.minimum(place % width, before - 1)
    row = own.to(tl.int64) if rows is None else tl.load(rows + place, inside, other=0)
    token = tl.load(tokens + place, inside, other=0)
    gain = tl.load(logits + row * logits_stride + token, inside, other=0.0).to(tl.float32)
    gain -= tl.load(norm + row, inside, other=0.0)
    at = (tl.load(step) - 1) * count + place
    tl.store(gains + at, gain.to(gains.dtype.element_ty), inside)
    if ends is not None:
        end = tl.load(logits + own.to(tl.int64) * logits_stride + eos, inside, other=0.0)
        end = end.to(tl.float32) - tl.load(norm + own, inside, other=0.0)
        tl.store(ends + at, end.to(ends.dtype.element_ty), inside)
