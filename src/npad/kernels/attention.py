"""Attention that keeps its intermediates in registers: additive, and of one query per row."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

COLUMNS = 256  # columns of contexts per block
SMALL_BATCH = 1024  # rows up to which blocks of single rows keep more multiprocessors busy
INTERPRETED = triton.knobs.runtime.interpret
OWN_COLUMNS = 32  # columns of a row's own keys, read at a time


def energies(
    query: Tensor, keys: Tensor, energy: Tensor, mask: Tensor, owner: Tensor | None = None
) -> Tensor:
    """Return attention energies Σ_k energy_k σ(query_k + keys_k), up to a constant per row.

    Args:
        query: [groups, size, width].
        keys: [sentences, length, width].
        energy: [width].
        mask: [sentences, length], nonzero at padding.
        owner: [groups], the sentence of each group; None: groups are sentences.

    Returns:
        [groups, size, length] in float32, −inf at padding.
    """
    groups, size, width = query.shape
    length = keys.shape[1]
    out = torch.empty(groups, size, length, dtype=torch.float32, device=query.device)
    rows, places, columns = (4, 16, 64) if groups * size > SMALL_BATCH else (1, 8, 256)
    quick = query.dtype == torch.bfloat16 and not INTERPRETED
    _energies[(groups * triton.cdiv(size, rows), triton.cdiv(length, places))](
        query, keys, energy, mask, out, owner, size, length, width,
        query.stride(0), query.stride(1), keys.stride(0), keys.stride(1), mask.stride(0),
        ROWS=rows, PLACES=places, SOME=columns, QUICK=quick, num_warps=4,
    )  # fmt: skip
    return out


def contexts(weights: Tensor, values: Tensor, owner: Tensor) -> Tensor:
    """Return the weighted sums Σ_i weights_i values_i, [groups, size, width].

    Args:
        weights: [groups, size, length].
        values: [sentences, length, width].
        owner: [groups], the sentence of each group.
    """
    groups, size, length = weights.shape
    width = values.shape[2]
    out = torch.empty(groups, size, width, dtype=values.dtype, device=values.device)
    if groups:
        _contexts[groups, triton.cdiv(width, COLUMNS)](
            weights, values, owner, out, size, length, width,
            *weights.stride(), values.stride(0), values.stride(1),
            ROWS=triton.next_power_of_2(size), COLUMNS=COLUMNS,
        )  # fmt: skip
    return out


@triton.jit
def _energies(
    query, keys, energy, mask, out, owner, size, length, width,
    query_group, query_row, keys_sentence, keys_place, mask_sentence,
    ROWS: tl.constexpr, PLACES: tl.constexpr, SOME: tl.constexpr, QUICK: tl.constexpr,  # noqa: N803
):  # fmt: skip
    blocks = tl.cdiv(size, ROWS)
    group = (tl.program_id(0) // blocks).to(tl.int64)
    sentence = group if owner is None else tl.load(owner + group)
    row = (tl.program_id(0) % blocks) * ROWS + tl.arange(0, ROWS)
    place = tl.program_id(1) * PLACES + tl.arange(0, PLACES)
    column = tl.arange(0, SOME)
    total = tl.zeros([ROWS, PLACES, SOME], tl.float32)
    q_at = query + group * query_group + row[:, None, None] * query_row + column[None, None, :]
    k_at = (
        keys + sentence * keys_sentence + place[None, :, None] * keys_place + column[None, None, :]
    )
    row_mask, place_mask = (row < size)[:, None, None], (place < length)[None, :, None]
    for start in range(0, width, SOME):
        inside = (start + column < width)[None, None, :]
        q = tl.load(q_at + start, mask=row_mask & inside, other=0.0)
        k = tl.load(k_at + start, mask=place_mask & inside, other=0.0)
        v = tl.load(energy + start + column, mask=start + column < width, other=0.0).to(tl.float32)[
            None, None, :
        ]
        if QUICK:  # σ(x) = ½ + ½ tanh ½x; the ½ is a constant per row. PTX has a packed tanh.
            x = (q.to(tl.float32) + k.to(tl.float32)) * 0.5
            squashed = tl.inline_asm_elementwise(
                "tanh.approx.bf16x2 $0, $1;",
                "=r,r",
                [x.to(tl.bfloat16)],
                dtype=tl.bfloat16,
                is_pure=True,
                pack=2,
            )
            total += squashed.to(tl.float32) * (v * 0.5)
        else:
            total += tl.sigmoid(q.to(tl.float32) + k.to(tl.float32)) * v
    summed = tl.sum(total, 2)
    masked = tl.load(mask + sentence * mask_sentence + place, mask=place < length, other=1)
    summed = tl.where(masked[None, :] != 0, -float("inf"), summed)
    at = out + (group * size + row[:, None]) * length + place[None, :]
    tl.store(at, summed, mask=(row < size)[:, None] & (place < length)[None, :])


@triton.jit
def _contexts(
    weights, values, owner, out, size, length, width,
    weights_group, weights_row, weights_place, values_sentence, values_place,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,  # noqa: N803
):  # fmt: skip
    group = tl.program_id(0).to(tl.int64)
    row, column = tl.arange(0, ROWS), tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    weights += group * weights_group + row * weights_row
    values += tl.load(owner + group) * values_sentence + column
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    for i in range(length):
        w = tl.load(weights + i * weights_place, row < size, other=0.0).to(tl.float32)
        v = tl.load(values + i * values_place, column < width, other=0.0).to(tl.float32)
        total += w[:, None] * v[None, :]
    at = out + (group * size + row[:, None]) * width + column[None, :]
    tl.store(at, total.to(out.dtype.element_ty), (row < size)[:, None] & (column < width)[None, :])


def attend_one_query(
    query: Tensor, keys: Tensor, values: Tensor, length: Tensor, scale: float, bias: Tensor | None
) -> Tensor:
    """Attend from one query per row to its own keys: [rows, 1, heads · group, width].

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
        _attend_one_query[rows, heads](
            query, keys, values, query if bias is None else bias, length, attended,
            scale, heads // keys.shape[1], width, *strides, *bias_strides,
            BIASED=bias is not None,
            COLUMNS=OWN_COLUMNS,
            WIDTH=triton.next_power_of_2(width),
            num_warps=1,
        )  # fmt: skip
    return attended


@triton.jit
def _attend_one_query(
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
