"""Validation: how good the weights are so far, and how the best are saved."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch

from npad.decoding import decode
from npad.errors import InvalidInput, StorageError
from npad.models.actors import Actor
from npad.models.cgru.fast import prepared
from npad.models.cgru.model import AttentionModel
from npad.models.steered import Steered
from npad.search.greedy import Greedy
from npad.storage import checkpoint
from npad.storage.actors import load_actor, save_actor
from npad.storage.atomic import atomic_folder
from npad.training.batches import Batcher, nll
from npad.training.recipe import Recipe
from npad.training.store import Store
from npad.training.update import Replicas, mixed_precision

ROWS = {"cuda": 1024, "cpu": 256}  # sentences decoded at a time
MAX_EXPONENT = 700.0  # of a perplexity; exp(710) overflows


class Validation(ABC):
    """Measures the weights of a run, and saves the best.

    Attributes:
        criterion: the measure that decides which weights are the best.
        lower_is_better: of the criterion.
    """

    criterion: ClassVar[str]
    lower_is_better: ClassVar[bool]

    def start(self) -> dict[str, float] | None:
        """Return the measures to beat, before the first update; None if there are none."""
        return None

    @abstractmethod
    def measure(self, perplexity: float) -> dict[str, float]:
        """Return the measures of the current weights, for the log.

        Args:
            perplexity: of the training pairs since the last validation.
        """

    @abstractmethod
    def save(self, folder: Path, progress: dict[str, Any]) -> None:
        """Write the current weights for use, with the fields of the run's progress."""

    @abstractmethod
    def verify(self, folder: Path) -> None:
        """Raise StorageError if weights that were saved are missing or damaged."""

    @property
    def worst(self) -> float:
        """The criterion that every other one is better than."""
        return math.inf if self.lower_is_better else -math.inf

    def is_better(self, value: float, best: float) -> bool:
        """Return whether a value of the criterion is better than the best."""
        return value < best if self.lower_is_better else value > best


class Perplexity(Validation):
    """The perplexity of a model on the validation pairs of a store."""

    criterion, lower_is_better = "valid_perplexity", True

    def __init__(
        self,
        model: AttentionModel,
        store: Store,
        recipe: Recipe,
        device: torch.device,
        replicas: Replicas | None = None,
    ) -> None:
        if store.valid is None:
            way_out = "prepare it with --valid SOURCE TARGET"
            raise InvalidInput(f"{store.folder} has no validation pairs; {way_out}")
        self.model, self.store, self.recipe, self.device = model, store, recipe, device
        self.replicas = replicas or Replicas()
        self.batcher = Batcher(store.valid, model.special, recipe.batch)

    @torch.no_grad()
    def measure(self, perplexity: float) -> dict[str, float]:
        """Return the NLL per sentence and the perplexity per token of the validation pairs."""
        self.model.eval()
        total = torch.zeros(2, dtype=torch.float64, device=self.device)
        for pairs in self.batcher.in_order():
            share = self.replicas.share(pairs)
            if len(share):
                batch = self.batcher.batch(share).to(self.device)
                with mixed_precision(self.recipe, self.device):
                    summed = nll(self.model, batch)
                total += torch.stack([summed.double(), total.new_tensor(len(batch.positions))])
        self.model.train()
        nats, tokens = self.replicas.add(total).tolist()
        mean = nats / len(self.batcher.corpus)
        return {"valid_nll": mean, "valid_perplexity": perplexity_of(nats, tokens)}

    def save(self, folder: Path, progress: dict[str, Any]) -> None:
        about = {
            "training": {
                "update": progress["update"],
                "epoch": progress["epoch"],
                "perplexity": progress["best"],
                "recipe": self.recipe.to_json(),
                "data": self.store.about["splits"],
            }
        }
        kept = ("longest_seconds", "languages")
        about |= {name: self.store.about[name] for name in kept if name in self.store.about}
        checkpoint.save(folder, self.model, self.store.subwords, about)

    def verify(self, folder: Path) -> None:
        checkpoint.verify(folder)


class GreedySearch:
    """Greedy decoding of validation sources, and the criterion of its outputs.

    Args:
        sources: token lists.
        measure: maps the tokens of all outputs to a criterion, higher is better; None takes the
            mean clean log-probability of the outputs.
        max_length: tokens of an output.
    """

    def __init__(
        self,
        sources: Sequence[Sequence[int]],
        measure: Callable[[list[tuple[int, ...]]], float] | None = None,
        max_length: int = 200,
    ) -> None:
        self.sources, self.measure, self.max_length = sources, measure, max_length

    def __call__(self, model: Any) -> dict[str, float]:
        """Return the measures of greedy search over a model: `log_prob`, and `criterion`."""
        device = torch.device(model.device).type
        rows = ROWS.get(device, ROWS["cpu"])
        order = sorted(range(len(self.sources)), key=lambda i: len(self.sources[i]))
        outputs: list[tuple[int, ...]] = [()] * len(order)
        log_prob = 0.0
        for start in range(0, len(order), rows):
            places = order[start : start + rows]
            sources = [self.sources[place] for place in places]
            for place, (best, *_) in zip(
                places, decode(model, sources, Greedy(), self.max_length), strict=True
            ):
                outputs[place] = best.tokens
                log_prob += best.log_prob / len(order)
        criterion = log_prob if self.measure is None else self.measure(outputs)
        return {"log_prob": log_prob, "criterion": criterion}


class Steering(Validation):
    """Greedy search with an actor, which must be better than greedy search without one.

    Args:
        model: the model that the actor steers.
        actor: the actor.
        search: decodes the validation sources.
        checksum: of the model's weights.
        about: how the actor is trained, for its actor.json.
    """

    criterion, lower_is_better = "criterion", False

    def __init__(
        self,
        model: AttentionModel,
        actor: Actor,
        search: Callable[[Any], dict[str, float]],
        checksum: str = "",
        about: dict[str, Any] | None = None,
    ) -> None:
        self.actor, self.search, self.checksum, self.about = actor, search, checksum, about or {}
        self.steered = Steered(prepared(model), actor)

    def start(self) -> dict[str, float]:
        """Return the measures of greedy search without an actor."""
        return self.search(self.steered.model)

    def measure(self, perplexity: float) -> dict[str, float]:
        """Return the measures of greedy search with the actor."""
        self.actor.eval()
        measures = self.search(self.steered)
        self.actor.train()
        return {"perplexity": perplexity, **measures}

    def save(self, folder: Path, progress: dict[str, Any]) -> None:
        """Write the current actor, as it is stored beside a model."""
        about = self.about | {
            "update": progress["update"],
            "greedy": round(progress["initial"], 4),
            "best": round(progress["best"], 4),
        }
        with atomic_folder(folder) as part:
            save_actor(part, self.actor, self.checksum, about)

    def verify(self, folder: Path) -> None:
        if load_actor(folder, self.checksum) is None:
            raise StorageError(f"{folder} has no actor any more; restore it, or start another run")


def perplexity_of(nats: float, tokens: float) -> float:
    """Return the perplexity per token of a summed NLL."""
    return math.exp(min(MAX_EXPONENT, nats / max(1, tokens)))
