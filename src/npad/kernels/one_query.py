"""Attention of one query per row to the row's own keys, as many as have been written."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

COLUMNS = 32  # read at a time


def attend(
    query: Tensor, keys: Tensor, values: Tensor, length: Tensor, scale: float, bias: Tensor | None
) -> Tensor:
    """Return the attended values, [rows, 1, heads · group, width].

    Args:
        query: [rows, heads · group, 1, width]; a group of queries shares keys.
        keys: [rows, heads, capacity, width], of any strides but the last.
        values: as `keys`.
        length: [], columns written before the last one, which is read too; on the GPU.
        scale: of scores.
        bias: [1, heads · group, 1, capacity], added to scores.
    """
    rows, heads, _, width = query.shape
    attended = torch.empty(rows, 1, heads, width, dtype=query.dtype, device=query.device)
    strides = [*query.stride()[:2], *keys.stride()[:3], *values.stride()[:3]]
    bias_strides = (0, 0) if bias is None else (bias.stride(1), bias.stride(3))
    if rows:
        _attend[rows, heads](
            query, keys, values, query if bias is None else bias, length, attended,
            scale, heads // keys.shape[1], width, *strides, *bias_strides,
            BIASED=bias is not None,
            COLUMNS=COLUMNS,
            WIDTH=triton.next_power_of_2(width),
            num_warps=1,
        )  # fmt: skip
    return attended


@triton.jit
def _attend(
    query, keys, values, bias, length, attended, scale, group, width,
    query_row, query_head, key_row, key_head, key_column, value_row, value_head, value_column,
    bias_head, bias_column,
    BIASED: tl.constexpr, COLUMNS: tl.constexpr, WIDTH: tl.constexpr,  # noqa: N803
):  # fmt: skip
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    unit = tl.arange(0, WIDTH)
    inside = unit < width
    q = tl.load(query + row * query_row + head * query_head + unit, inside, 0).to(tl.float32)
    keys += row * key_row + head // group * key_head
    values += row * value_row + head // group * value_head
    count = tl.load(length) + 1
    highest = tl.full([1], -float("inf"), tl.float32)
    total = tl.zeros([1], tl.float32)
    sums = tl.zeros([WIDTH], tl.float32)
    for start in range(0, count, COLUMNS):
        column = start + tl.arange(0, COLUMNS)
        written = column < count
        cells = written[:, None] & inside[None]
        key = tl.load(keys + column[:, None] * key_column + unit[None], cells, 0).to(tl.float32)
        score = tl.sum(key * q[None], 1) * scale
        if BIASED:
            added = tl.load(bias + head * bias_head + column * bias_column, written, 0)
            score += added.to(tl.float32)
        score = tl.where(written, score, -float("inf"))
        higher = tl.maximum(highest, tl.max(score, 0))
        weight = tl.exp(score - higher)
        kept = tl.exp(highest - higher)
        value = tl.load(values + column[:, None] * value_column + unit[None], cells, 0)
        sums = sums * kept + tl.sum(weight[:, None] * value.to(tl.float32), 0)
        total = total * kept + tl.sum(weight, 0)
        highest = higher
    place = attended + (row * tl.num_programs(1) + head) * width + unit
    tl.store(place, (sums / total).to(attended.dtype.element_ty), inside)
