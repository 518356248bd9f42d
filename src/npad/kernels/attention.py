"""Additive attention without its [rows, source, width] numbers: they are made, squashed and summed in registers."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

FEW = 1024  # rows that leave multiprocessors idle unless each has a block of its own
INTERPRETED = triton.knobs.runtime.interpret


def energies(query: Tensor, keys: Tensor, energy: Tensor, mask: Tensor) -> Tensor:
    """Σ_k energy_k σ(query_k + keys_k) in float32, −inf where masked, up to a number that a whole row shares.

    query [sentences, each, width], keys [sentences, length, width], energy [width], mask [sentences, length]
    -> [sentences, each, length].
    """
    sentences, each, width = query.shape
    length = keys.shape[1]
    out = torch.empty(sentences, each, length, dtype=torch.float32, device=query.device)
    rows, places, some = (4, 16, 64) if sentences * each > FEW else (1, 8, 256)
    quick = query.dtype == torch.bfloat16 and not INTERPRETED
    _energies[(sentences * triton.cdiv(each, rows), triton.cdiv(length, places))](
        query, keys, energy, mask, out, each, length, width,
        query.stride(0), query.stride(1), keys.stride(0), keys.stride(1), mask.stride(0),
        ROWS=rows, PLACES=places, SOME=some, QUICK=quick, num_warps=4,
    )  # fmt: skip
    return out


@triton.jit
def _energies(
    query, keys, energy, mask, out, each, length, width,
    query_sentence, query_row, keys_sentence, keys_place, mask_sentence,
    ROWS: tl.constexpr, PLACES: tl.constexpr, SOME: tl.constexpr, QUICK: tl.constexpr,  # noqa: N803
):  # fmt: skip
    blocks = tl.cdiv(each, ROWS)
    sentence = (tl.program_id(0) // blocks).to(tl.int64)
    row = (tl.program_id(0) % blocks) * ROWS + tl.arange(0, ROWS)
    place = tl.program_id(1) * PLACES + tl.arange(0, PLACES)
    column = tl.arange(0, SOME)
    total = tl.zeros([ROWS, PLACES, SOME], tl.float32)
    q_at = query + sentence * query_sentence + row[:, None, None] * query_row + column[None, None, :]
    k_at = keys + sentence * keys_sentence + place[None, :, None] * keys_place + column[None, None, :]
    here, there = (row < each)[:, None, None], (place < length)[None, :, None]
    for start in range(0, width, SOME):
        inside = (start + column < width)[None, None, :]
        q = tl.load(q_at + start, mask=here & inside, other=0.0)
        k = tl.load(k_at + start, mask=there & inside, other=0.0)
        v = tl.load(energy + start + column, mask=start + column < width, other=0.0).to(tl.float32)[None, None, :]
        if QUICK:  # σ(x) = ½ + ½ tanh ½x, with the GPU's own tanh for two numbers at a time
            x = (q.to(tl.float32) + k.to(tl.float32)) * 0.5
            squashed = tl.inline_asm_elementwise(
                "tanh.approx.bf16x2 $0, $1;", "=r,r", [x.to(tl.bfloat16)], dtype=tl.bfloat16, is_pure=True, pack=2
            )
            total += squashed.to(tl.float32) * (v * 0.5)
        else:
            total += tl.sigmoid(q.to(tl.float32) + k.to(tl.float32)) * v
    summed = tl.sum(total, 2)
    masked = tl.load(mask + sentence * mask_sentence + place, mask=place < length, other=1)
    summed = tl.where(masked[None, :] != 0, -float("inf"), summed)
    at = out + (sentence * each + row[:, None]) * length + place[None, :]
    tl.store(at, summed, mask=(row < each)[:, None] & (place < length)[None, :])
