"""The training loss: the negative log-likelihood of the targets."""

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
    """Return −log p of the batch's targets, end tokens included, summed over its sentences.

    Args:
        model: the model to score with.
        batch: the pairs.
        perturb: the noise of a step, counted from 1.
        features: a faster equivalent of `model.features`, such as a captured one.
    """
    state = model.begin(batch.source, batch.lengths)
    hidden = (features or model.features)(state, batch.inputs, perturb)
    logits = model.logits(hidden.flatten(0, 1)[batch.positions])
    precise = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return F.cross_entropy(precise, batch.outputs, reduction="sum")
