"""Pack weights to a quarter of their size: matrices as int8 with one scale per row."""

from __future__ import annotations

import torch
from torch import Tensor

from npad.models.quantised import quantise_rows

SCALE = ".scale"  # appended to a matrix's name for the scales of its rows


def pack(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Quantise matrices to int8, each with a scale per row; keep vectors unchanged.

    Convolutions are stored in float16, since their errors add up from layer to layer.
    """
    packed: dict[str, Tensor] = {}
    for name, weight in weights.items():
        if weight.dim() != 2:
            packed[name] = weight if weight.dim() < 2 else weight.to(torch.float16)
            continue
        packed[name], packed[name + SCALE] = quantise_rows(weight)
    return packed


def unpack(packed: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return float32 weights, each within half its row's scale of the original."""
    return {
        name: (weight.to(torch.float32).flatten(1) * packed[name + SCALE][:, None]).view_as(weight)
        if weight.dtype == torch.int8
        else weight
        for name, weight in packed.items()
        if not name.endswith(SCALE)
    }
