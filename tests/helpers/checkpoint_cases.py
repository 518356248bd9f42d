"""A tiny model with a vocabulary, to be saved."""

from __future__ import annotations

import torch

from npad.models.cgru.model import AttentionModel
from npad.text.subwords import Subwords
from runs import TINY

SUBWORDS = Subwords.learn(["ein kleines Haus", "ein kleiner Hund"] * 3, 280)


def tiny(**changes):
    torch.manual_seed(1)
    return AttentionModel(SUBWORDS.size, SUBWORDS.size, **(TINY | changes)).eval()
