"""Small untrained translation models in float64, and sources for them."""

from __future__ import annotations

import torch

from npad.models.cgru.model import AttentionModel

SOURCE = [[3, 4, 5, 6, 7], [8], [9, 3], [], [4, 4, 4]]


def build(dtype=torch.float64, seed=0, scale=0.6, **how) -> AttentionModel:
    torch.manual_seed(seed)
    model = AttentionModel(12, 11, **({"units": 6, "embedding": 5} | how)).to(dtype).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=scale)
    return model
