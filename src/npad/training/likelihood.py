"""Maximum likelihood: what training makes small."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from npad.model import untouched
from npad.models.cgru.model import AttentionModel
from npad.training.batches import Batch


def nll(
    model: AttentionModel,
    batch: Batch,
    perturb: Callable[[int], Any] = lambda step: untouched,
    features: Callable[..., Tensor] | None = None,
) -> Tensor:
    """−log p of the batch's targets, end symbols included, summed over its sentences.

    perturb: the noise of each step, from 1. features: stands in for the model's own, to the same effect.
    """
    state = model.begin(batch.source, batch.lengths)
    read = (features or model.features)(state, batch.inputs, perturb)
    logits = model.logits(read.flatten(0, 1)[batch.places])
    precise = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return F.cross_entropy(precise, batch.outputs, reduction="sum")
