"""Additive attention without its [rows, source, width] numbers: they are made, squashed and summed in registers."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

COLUMNS = 256  # of a block of contexts
FEW = 1024  # rows that leave multiprocessors idle unless each has a block of its own
INTERPRETED = triton.knobs.runtime.interpret


def energies(
    query: Tensor, keys: Tensor, energy: Tensor, mask: Tensor, owner: Tensor | None = None
) -> Tensor:
    """Σ_k energy_k σ(query_k + keys_k) in float32, −inf where masked, up to a number that a whole row shares.

    query [groups, each, width], keys [sentences, length, width], energy [width], mask [sentences, length]
    -> [groups, each, length]. owner [groups]: the sentence of each group; None: there is one of each.
    """
    groups, each, width = query.shape
    length = keys.shape[1]
    out = torch.empty(groups, each, length, dtype=torch.float32, device=query.device)
    rows, places, some = (4, 16, 64) if groups * each > FEW else (1, 8, 256)
    quick = query.dtype == torch.bfloat16 and not INTERPRETED
    _energies[(groups * triton.cdiv(each, rows), triton.cdiv(length, places))](
        query, keys, energy, mask, out, owner, each, length, width,
        query.stride(0), query.stride(1), keys.stride(0), keys.stride(1), mask.stride(0),
        ROWS=rows, PLACES=places, SOME=some, QUICK=quick, num_warps=4,
    )  # fmt: skip
    return out


def contexts(weights: Tensor, values: Tensor, owner: Tensor) -> Tensor:
    """Σ_i weights_i values_i -> [groups, each, width].

    The weights are [groups, each, length]; a group's values are its owner's of [sentences, length, width].
    """
    groups, each, length = weights.shape
    width = values.shape[2]
    out = torch.empty(groups, each, width, dtype=values.dtype, device=values.device)
    if groups:
        _contexts[groups, triton.cdiv(width, COLUMNS)](
            weights, values, owner, out, each, length, width, *weights.stride(), values.stride(0), values.stride(1),
            ROWS=triton.next_power_of_2(each), COLUMNS=COLUMNS,
        )  # fmt: skip
    return out


@triton.jit
def _energies(
    query, keys, energy, mask, out, owner, each, length, width,
    query_group, query_row, keys_sentence, keys_place, mask_sentence,
    ROWS: tl.constexpr, PLACES: tl.constexpr, SOME: tl.constexpr, QUICK: tl.constexpr,  # noqa: N803
):  # fmt: skip
    blocks = tl.cdiv(each, ROWS)
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
    here, there = (row < each)[:, None, None], (place < length)[None, :, None]
    for start in range(0, width, SOME):
        inside = (start + column < width)[None, None, :]
        q = tl.load(q_at + start, mask=here & inside, other=0.0)
        k = tl.load(k_at + start, mask=there & inside, other=0.0)
        v = tl.load(energy + start + column, mask=start + column < width, other=0.0).to(tl.float32)[
            None, None, :
        ]
        if QUICK:  # σ(x) = ½ + ½ tanh ½x, with the GPU's own tanh for two numbers at a time
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
    at = out + (group * each + row[:, None]) * length + place[None, :]
    tl.store(at, summed, mask=(row < each)[:, None] & (place < length)[None, :])


@triton.jit
def _contexts(
    weights, values, owner, out, each, length, width, of_group, of_row, of_place, of_sentence, of_value,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,  # noqa: N803
):  # fmt: skip
    group = tl.program_id(0).to(tl.int64)
    row, column = tl.arange(0, ROWS), tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    weights += group * of_group + row * of_row
    values += tl.load(owner + group) * of_sentence + column
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    for i in range(length):
        w = tl.load(weights + i * of_place, row < each, other=0.0).to(tl.float32)
        v = tl.load(values + i * of_value, column < width, other=0.0).to(tl.float32)
        total += w[:, None] * v[None, :]
    at = out + (group * each + row[:, None]) * width + column[None, :]
    tl.store(at, total.to(out.dtype.element_ty), (row < each)[:, None] & (column < width)[None, :])
