"""The variants that benchmarks/actors.py trains, as its command line writes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch

from npad.training.recipe import Recipe
from npad.training.store import Corpus
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


def joined(corpora: Sequence[Corpus]) -> Corpus:
    """Return the pairs of several corpora as one."""
    sides: list[Any] = []
    for name in ("source", "target"):
        parts = [getattr(corpus, name) for corpus in corpora]
        offsets = np.cumsum([0, *(len(part.tokens) for part in parts)])
        ends = [part.ends + offset for part, offset in zip(parts, offsets, strict=False)]
        tokens = np.concatenate([part.tokens for part in parts])
        sides.append(replace(parts[0], tokens=tokens, ends=np.concatenate(ends)))
    return Corpus(*sides)


def without_a_word(text: str, number: int) -> str:
    """Return a sentence less one of its words, which `number` draws; the last one stays."""
    words = text.split()
    if len(words) < 3:
        return text
    del words[number * 2654435761 % (1 << 32) % (len(words) - 1)]
    return " ".join(words)
