"""The variants that benchmarks/actors.py trains, as its command line writes them."""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch

from npad.training.recipe import Recipe
from npad.training.targets import candidates_needed
from npad.training.teacher import Teacher


@dataclass(frozen=True)
class Variant:
    """What an actor is, and what it learns from."""

    name: str
    kind: str = "feed-forward"
    units: int = 512
    layers: int = 1
    inputs: str = "state"
    sites: str = "hidden"
    data: str = "seen"  # sets of sources: seen, unseen, tatoeba, varied
    differing: int = 0  # 1: only pairs whose target greedy search does not find
    width: int = 10
    targets: str = "beam"
    epochs: int = 6
    rate: float = 1e-3
    batch: int = 8192
    seed: int = 0

    @classmethod
    def parse(cls, text: str) -> Variant:
        name, _, settings = text.partition(":")
        types = {field.name: type(field.default) for field in fields(cls)}
        pairs = [setting.split("=", 1) for setting in filter(None, settings.split(","))]
        return cls(name, **{key: types[key](value) for key, value in pairs})

    @property
    def teacher(self) -> Teacher:
        return Teacher(self.width, candidates_needed(self.targets.split("+"), self.width))

    def recipe(self, device: torch.device) -> Recipe:
        precision = "bfloat16" if device.type == "cuda" else "float32"
        return Recipe(
            learning_rate=self.rate,
            anneal=True,
            batch=self.batch,
            epochs=self.epochs,
            patience=self.epochs,
            precision=precision,
            seed=self.seed,
        )
