"""Weights in a quarter of the space: each row of a matrix as whole numbers from −127 to 127, and its scale."""

from __future__ import annotations

import torch
from torch import Tensor

from npad.models.quantised import quantise_rows

SCALE = ".scale"


def packed(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Matrices as int8 with a scale per row, vectors as they are."""
    small: dict[str, Tensor] = {}
    for name, weight in weights.items():
        if weight.dim() != 2:
            small[name] = weight
            continue
        small[name], small[name + SCALE] = quantise_rows(weight)
    return small


def unpacked(small: dict[str, Tensor]) -> dict[str, Tensor]:
    """The weights again, each within half its row's scale of what it was."""
    return {
        name: weight.to(torch.float32) * small[name + SCALE][:, None]
        if weight.dtype == torch.int8
        else weight
        for name, weight in small.items()
        if not name.endswith(SCALE)
    }
