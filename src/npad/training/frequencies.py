"""Where training begins: with an output that has the frequencies of the tokens."""

from __future__ import annotations

import numpy as np
import torch

from npad.models.cgru.model import AttentionModel
from npad.training.sources import Side


@torch.no_grad()
def begin_with_frequencies(model: AttentionModel, target: Side) -> None:
    """Set the output's bias to the logarithm of each token's frequency, smoothed by one count.

    Otherwise it is learnt slowly, and meanwhile an encoder of pictures learns to give all of them
    the same large annotations instead.
    """
    counts = np.bincount(target.tokens, minlength=model.logits.out_features) + 1.0
    counts[model.special.eos] += len(target.ends)
    model.logits.bias.copy_(torch.from_numpy(np.log(counts / counts.sum())))
