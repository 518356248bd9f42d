"""The training loop: updates, validation, checkpoints, and when to stop."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from npad.errors import InvalidInput, StorageError, TrainingError
from npad.storage import checkpoint
from npad.storage import jsonl as log
from npad.storage.sealed import digest
from npad.training.batches import Batcher, Index
from npad.training.likelihood import nll
from npad.training.recipe import LONGER, Recipe
from npad.training.store import Store
from npad.training.update import Updater, mixed

State = dict[int, dict[str, Tensor]]  # an optimiser's tensors, by parameter and name
REPORT = 10  # updates between two reports; a GPU is waited for no more often


@dataclass
class Progress:
    """How far a run has come."""

    update: int = 0
    epoch: int = 0
    position: int = 0  # the next batch of the epoch
    batches: int = 1  # of the epoch
    best: float = math.inf  # validation perplexity
    best_update: int = 0
    worse: int = 0  # validations since the best
    validated: int = 0  # the last update that was
    rate: float = 1.0  # the learning rate, as a share of the recipe's
    seconds: float = 0.0

    @classmethod
    def from_json(cls, plain: Mapping[str, Any], name: str) -> Progress:
        """Read what `asdict` wrote; `name` is what an error calls it."""
        progress = cls()
        for key, default in asdict(progress).items():
            value = plain.get(key)
            if not _is_like(value, default):
                kind = "whole number" if isinstance(default, int) else "number"
                rule = f"{key} must be a {kind} of at least 0"
                raise StorageError(f"{name} is damaged: {rule}, not {value!r:.40}")
            setattr(progress, key, value)
        if unknown := plain.keys() - asdict(progress).keys():
            raise StorageError(f"{name} is damaged: it has {min(unknown)!r:.40}")
        if progress.batches == 0:
            raise StorageError(f"{name} is damaged: batches must be at least 1, not 0")
        bounds = {"position": "batches", "best_update": "update", "validated": "update"}
        for key, most in bounds.items():
            if getattr(progress, key) > getattr(progress, most):
                raise StorageError(f"{name} is damaged: its {key} is above its {most}")
        return progress


def _is_like(value: Any, default: float) -> bool:
    """Whether a number is of the default's kind, and not negative or NaN."""
    kinds = (int,) if isinstance(default, int) else (int, float)
    return type(value) in kinds and value >= 0


class Watch:
    """What a run tells about itself. This one does not listen."""

    def preparing(self, what: str, done: int, total: int) -> None:
        """The data is being prepared, where that is part of the run."""

    def epoch(self, place: Progress, batches: int, recipe: Recipe) -> None:
        """An epoch of so many batches begins, or goes on."""

    def report(self, record: dict[str, Any]) -> None:
        """A line of the log: of some updates, or of a validation (which has `valid_perplexity`)."""


@dataclass
class Loop:
    """One run of training, in its folder."""

    folder: Path
    store: Store
    updater: Updater
    watch: Watch = field(default_factory=Watch)
    progress: Progress = field(default_factory=Progress)

    def __post_init__(self) -> None:
        valid = self.store.valid
        if valid is None:
            raise InvalidInput(
                f"{self.store.folder} has no validation pairs; prepare it with --valid SOURCE TARGET"
            )
        self.model, self.recipe, self.first = (
            self.updater.model,
            self.updater.recipe,
            self.updater.processes.first,
        )
        self.valid = Batcher(valid, self.model.special, self.recipe.batch)
        self.log = self.folder / "log.jsonl"
        self.pending: list[tuple[Tensor, Index]] = []  # updates that were not reported yet
        self.began = self.reported = time.monotonic()

    def run(self) -> str:
        """Train until there is reason to stop, and say which."""
        self.resume()
        for pairs in self._todo():
            self.progress.update += 1
            self.progress.position += 1
            self._set_rate()
            self.pending.append((self.updater.update(pairs, self.progress.update), pairs))
            if len(self.pending) == REPORT:
                self.report()
            if self._validation_is_due():
                self.validate()
            elif self.progress.update % self.recipe.checkpoint == 0:
                self.save()
        if self.progress.validated != self.progress.update:
            self.validate()
        self.model.eval()
        return self.reason()

    def reason(self) -> str:
        """Why to stop; empty if there is none."""
        progress, recipe = self.progress, self.recipe
        if progress.worse >= recipe.patience:
            return f"{progress.worse} validations without a new best"
        if recipe.updates is not None and progress.update >= recipe.updates:
            return f"{recipe.updates:,} updates"
        return f"{recipe.epochs} epochs" if progress.epoch >= recipe.epochs else ""

    def report(self) -> None:
        """Wait for the updates since the last report, see that they are sound, and log them."""
        if not self.pending:
            return
        pending, self.pending = self.pending, []
        losses, norms = torch.stack([numbers for numbers, _ in pending]).T.tolist()
        for i, loss in enumerate(losses):
            if not math.isfinite(loss) or not math.isfinite(norms[i]):
                what = (
                    f"the loss is {loss}"
                    if not math.isfinite(loss)
                    else f"the gradient's norm is {norms[i]}"
                )
                self._diverged(self.progress.update - len(losses) + 1 + i, what)
        now, targets = time.monotonic(), self.updater.corpus.target.lengths
        sentences = sum(len(pairs) for _, pairs in pending)
        symbols = sum(int(targets[pairs].sum()) + len(pairs) for _, pairs in pending)
        record = {
            **self._where(),
            "nll": sum(losses) / sentences,
            "perplexity": math.exp(min(700.0, sum(losses) / symbols)),
            "gradient_norm": sum(norms) / len(norms),
            "symbols_per_second": round(symbols / max(1e-9, now - self.reported)),
        }
        self.reported = now
        self._tell(record)

    def validate(self) -> None:
        """Measure, keep the best, and save."""
        self.report()
        progress = self.progress
        mean, perplexity = self.perplexity()
        better = perplexity < progress.best
        progress.worse = 0 if better else progress.worse + 1
        progress.validated = progress.update
        if not better:
            progress.rate *= self.recipe.decay
        else:
            progress.best, progress.best_update = perplexity, progress.update
            if self.first:
                folder = self.folder / f"best-{progress.update}"
                checkpoint.save(folder, self.model, self.store.subwords, self.about())
                checkpoint.keep_only(folder)
        self._tell(
            self._where() | {"valid_nll": mean, "valid_perplexity": perplexity, "best": better}
        )
        self.save()
        self.reported = time.monotonic()

    @torch.no_grad()
    def perplexity(self) -> tuple[float, float]:
        """Of the validation pairs: NLL a sentence, and perplexity a symbol."""
        self.model.eval()
        total = torch.zeros(2, dtype=torch.float64, device=self.updater.device)
        for pairs in self.valid.in_order():
            share = self.updater.processes.share(pairs)
            if len(share):
                batch = self.valid.batch(share).to(self.updater.device)
                with mixed(self.recipe, self.updater.device):
                    summed = nll(self.model, batch)
                total += torch.stack([summed.double(), total.new_tensor(len(batch.places))])
        self.model.train()
        nats, symbols = self.updater.processes.add(total).tolist()
        if not math.isfinite(nats):
            self._diverged(self.progress.update, f"the validation loss is {nats}")
        return nats / len(self.valid.corpus), math.exp(min(700.0, nats / symbols))

    def save(self) -> None:
        """A checkpoint to go on from."""
        self.report()
        self.progress.seconds = time.monotonic() - self.began
        if self.first:
            folder = self.folder / f"checkpoint-{self.progress.update}"
            state = self.updater.optimiser.state_dict()["state"]
            tensors = {
                f"{i}.{name}": tensor
                for i, parts in state.items()
                for name, tensor in parts.items()
            }
            training = (tensors, asdict(self.progress) | {"plan": self.plan()})
            checkpoint.save(folder, self.model, self.store.subwords, self.about(), training)
            checkpoint.keep_only(folder)

    def resume(self) -> None:
        """Go on from the last checkpoint, if there is one."""
        last = checkpoint.newest(self.folder, "checkpoint")
        if last is not None:
            weights, tensors, saved = checkpoint.load_training(last)
            self._ensure_planned(last, saved.pop("plan", None))
            self.progress = Progress.from_json(saved, f"{last}/{checkpoint.PROGRESS}")
            if self.progress.update != checkpoint.number_of(last):
                raise StorageError(f"{last} is damaged: it is of update {self.progress.update}")
            self._ensure_best()
            checkpoint.set_weights(self.model, weights)
            groups = self.updater.optimiser.state_dict()["param_groups"]
            state = self._optimiser_state(last, tensors)
            self.updater.optimiser.load_state_dict({"state": state, "param_groups": groups})
        if self.first:
            log.rewind(self.log, self.progress.update)
        self.reported = time.monotonic()
        self.began = self.reported - self.progress.seconds

    def about(self) -> dict[str, Any]:
        """What a checkpoint tells about its making."""
        where = {
            "update": self.progress.update,
            "epoch": self.progress.epoch,
            "perplexity": self.progress.best,
        }
        return {
            "training": where
            | {"recipe": self.recipe.to_json(), "data": self.store.about["splits"]}
        }

    def plan(self) -> dict[str, str]:
        """Digests of what decides the weights; the lengths of a run may change as it is resumed."""
        recipe = self.recipe.to_json()
        recipe = {name: recipe[name] for name in recipe if name not in LONGER}
        parts = {"model": self.model.options, "recipe": recipe, "data": self.store.about}
        return {name: digest(part) for name, part in parts.items()}

    def _ensure_planned(self, last: Path, saved: Any) -> None:
        """Refuse to go on from a checkpoint of another model, recipe or data."""
        if not isinstance(saved, dict):
            raise StorageError(f"{last}/{checkpoint.PROGRESS} is damaged: it has no plan")
        for name, value in self.plan().items():
            if saved.get(name) != value:
                rule = f"the {name} of {self.folder} is not what {last.name} was trained with"
                raise StorageError(f"{rule}; restore it, or start another run")

    def _ensure_best(self) -> None:
        """Refuse to go on without the best model so far; one that is later will be made again."""
        if self.progress.best_update == 0 or not self.first:
            return
        best = checkpoint.newest(self.folder, "best")
        number = checkpoint.number_of(best) if best else 0
        expected = number == self.progress.best_update or number > self.progress.update
        if best is None or not expected:
            name = f"best-{self.progress.best_update}"
            raise StorageError(f"{self.folder} has lost {name}; restore it, or start another run")
        checkpoint.verify(best)

    def _optimiser_state(self, last: Path, tensors: dict[str, Tensor]) -> State:
        """The optimiser's tensors by parameter, each a scalar or of its parameter's shape."""
        state: State = {}
        shapes = {str(i): parameter.shape for i, parameter in enumerate(self.model.parameters())}
        for key, tensor in tensors.items():
            number, _, name = key.partition(".")
            if number not in shapes or tensor.shape not in ((), shapes[number]):
                reason = f"{key!r:.40} does not fit the model"
                raise StorageError(f"{last}/{checkpoint.TRAINING} is damaged: {reason}")
            state.setdefault(int(number), {})[name] = tensor
        return state

    def _set_rate(self) -> None:
        rate = self.recipe.rate * self.progress.rate
        if self.recipe.anneal:
            done = (
                self.progress.epoch + self.progress.position / self.progress.batches
            ) / self.recipe.epochs
            rate *= 0.5 + 0.5 * math.cos(math.pi * min(1.0, done))
        for group in self.updater.optimiser.param_groups:
            group["lr"] = rate

    def _todo(self) -> Iterator[Index]:
        """Batch after batch, from where the run is, until there is reason to stop."""
        progress = self.progress
        while not self.reason():
            batches = self.updater.batcher.epoch(self.recipe.seed, progress.epoch)
            progress.batches = len(batches)
            self.watch.epoch(progress, len(batches), self.recipe)
            while progress.position < len(batches) and not self.reason():
                yield batches[progress.position]
            if progress.position >= len(batches):  # above: it was cut into more on another device
                progress.epoch, progress.position = progress.epoch + 1, 0

    def _validation_is_due(self) -> bool:
        every = self.recipe.validate
        if self.reason():  # the last update
            return True
        return (
            self.progress.position == self.progress.batches
            if every is None
            else self.progress.update % every == 0
        )

    def _where(self) -> dict[str, Any]:
        epoch = self.progress.epoch + self.progress.position / self.progress.batches
        seconds = time.monotonic() - self.began
        return {
            "update": self.progress.update,
            "epoch": round(epoch, 3),
            "seconds": round(seconds, 2),
        }

    def _tell(self, record: dict[str, Any]) -> None:
        if self.first:
            log.append(self.log, record)
            self.watch.report(record)

    def _diverged(self, update: int, what: str) -> None:
        last = checkpoint.newest(self.folder, "checkpoint")
        kept = f"the last good checkpoint is {last}" if last else "there was no checkpoint yet"
        rate = self.recipe.rate * self.progress.rate
        where = f"update {update} (epoch {self.progress.epoch + 1})"
        raise TrainingError(
            f"{what} at {where}; {kept}; start another run, with a learning rate below {rate:g}"
        )
