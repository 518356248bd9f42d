"""Helpers of the tests of actors: actors with strong pushes, and small models to train them for."""

from __future__ import annotations

import numpy as np
import torch

from attention_cases import build
from npad import Actor, Steered
from npad.models.actors import INPUTS


def actor_for(model, inputs=INPUTS, sites=("hidden",), scale=0.8, seed=5, dtype=None) -> Actor:
    """An actor with strong pushes, in the precision of the model."""
    torch.manual_seed(seed)
    actor = Actor.for_model(model, sites, units=7, inputs=inputs)
    with torch.no_grad():
        for parameter in actor.parameters():
            parameter.normal_(std=scale)
    return actor.to(dtype or next(model.parameters()).dtype).eval()


def steered(model=None, **options) -> Steered:
    """A model with an actor that pushes strongly."""
    model = build() if model is None else model
    return Steered(model, actor_for(model, **options))


def random_sources(count: int, seed: int = 0) -> list[list[int]]:
    """Sources of 1 to 6 tokens."""
    random = np.random.default_rng(seed)
    return [random.integers(1, 12, size=random.integers(1, 7)).tolist() for _ in range(count)]


def ending():
    """A model that ends most outputs, of six tokens on average."""
    model = build(torch.float32, scale=1.2)
    with torch.no_grad():
        model.logits.bias[model.special.eos] += 1
    return model
