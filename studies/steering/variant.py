"""What an actor is and what it learns from, as a command line writes it: NAME:field=value,…"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch

from npad.errors import InvalidInput
from npad.models.actors import KIND
from npad.training.recipe import Recipe
from npad.training.store import PairCorpus
from npad.training.teacher import Teacher, candidates_needed
from npad.validation import ensure_choice

SETS = ("seen", "varied", "more")
WEIGHTS = "weights"  # the kind that trains all weights of the model instead of an actor


@dataclass(frozen=True)
class Variant:
    """A network, its teacher and its recipe; several values have + between them.

    Attributes:
        name: of the variant.
        kind: of the actor, or "weights" for all weights of the model.
        units: units of its hidden layer.
        layers: hidden layers.
        inputs: what it reads: state, embedding, source.
        sites: where it pushes.
        data: sets of sources: "seen", those of the training data; "varied", the same less one word
            each; "more", other files of sources.
        differing: 1 to learn only targets that greedy search does not find.
        width: of the beam that decodes the sources.
        targets: which of its candidates to learn, as `npad train-actor --target`.
        epochs: passes over the pairs; the rate is annealed to zero over them.
        rate: the learning rate of Adam.
        decay: decoupled weight decay.
        dropout: of the model while an actor learns; fine-tuned weights have the model's own.
        batch: tokens per side of a batch.
    """

    name: str
    kind: str = KIND
    units: int = 512
    layers: int = 1
    inputs: str = "state"
    sites: str = "hidden"
    data: str = "seen"
    differing: int = 0
    width: int = 10
    targets: str = "beam"
    epochs: int = 6
    rate: float = 1e-3
    decay: float = 0.0
    dropout: float = 0.0
    batch: int = 8192

    def __post_init__(self) -> None:
        ensure_choice("kind", self.kind, (KIND, WEIGHTS))
        for name in self.data.split("+"):
            ensure_choice("each of data", name, SETS)
        candidates_needed(self.targets.split("+"), self.width)

    @classmethod
    def parse(cls, text: str, default: Variant | None = None) -> Variant:
        """Build a variant from NAME:field=value,…; fields that are not named are the default's.

        Raises:
            InvalidInput: there is no such field, or its value is of another type.
        """
        name, _, settings = text.partition(":")
        types: dict[str, Any] = {field.name: type(field.default) for field in fields(cls)[1:]}
        values: dict[str, Any] = {}
        for setting in filter(None, settings.split(",")):
            key, _, value = setting.partition("=")
            ensure_choice("a field of a variant", key, tuple(types))
            try:
                values[key] = types[key](value)
            except ValueError as error:
                kind = "a whole number" if types[key] is int else "a number"
                raise InvalidInput(f"{key} of a variant must be {kind}, not {value!r}") from error
        return replace(default or cls(name), name=name, **values)

    @property
    def teacher(self) -> Teacher:
        """The beam that decodes the sources."""
        return Teacher(self.width, candidates_needed(self.targets.split("+"), self.width))

    def learning_from(self, other: Variant) -> Variant:
        """Return this variant with the pairs of another one."""
        same = {name: getattr(other, name) for name in ("data", "differing", "width", "targets")}
        return replace(self, **same)

    def recipe(self, device: torch.device, seed: int) -> Recipe:
        """Return the recipe: all epochs are trained, and validation chooses among them."""
        return Recipe(
            learning_rate=self.rate,
            anneal=True,
            batch=self.batch,
            epochs=self.epochs,
            patience=self.epochs,
            checkpoint=100_000,
            precision="bfloat16" if device.type == "cuda" else "float32",
            seed=seed,
        )


def joined(corpora: Sequence[PairCorpus]) -> PairCorpus:
    """Return the pairs of several corpora as one."""
    sides: list[Any] = []
    for name in ("source", "target"):
        parts = [getattr(corpus, name) for corpus in corpora]
        offsets = np.cumsum([0, *(len(part.tokens) for part in parts)])
        ends = [part.ends + offset for part, offset in zip(parts, offsets, strict=False)]
        tokens = np.concatenate([part.tokens for part in parts])
        sides.append(replace(parts[0], tokens=tokens, ends=np.concatenate(ends)))
    return PairCorpus(*sides)


def without_a_word(text: str, number: int) -> str:
    """Return a sentence less one of its words, which `number` draws; the last one stays."""
    words = text.split()
    if len(words) < 3:
        return text
    del words[number * 2654435761 % (1 << 32) % (len(words) - 1)]
    return " ".join(words)
