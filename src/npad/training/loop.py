"""The training loop: updates, validation, checkpoints and early stopping."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor

from npad.errors import InvalidInput, StorageError, TrainingError
from npad.storage import checkpoint
from npad.storage import jsonl as log
from npad.storage.regular import digest
from npad.training.batches import Batcher
from npad.training.likelihood import nll
from npad.training.recipe import STOPPING_CRITERIA, Recipe
from npad.training.sources import Index
from npad.training.store import Store
from npad.training.update import Updater, mixed_precision

OptimiserState = dict[int, dict[str, Tensor]]  # tensors by parameter and name
REPORT_INTERVAL = 10  # updates between reports, each of which synchronises with the GPU
MAX_EXPONENT = 700.0  # of a perplexity; exp(710) overflows


@dataclass
class Progress:
    """The state of a run, as in progress.json."""

    update: int = 0  # updates so far
    epoch: int = 0  # epochs completed
    position: int = 0  # the next batch of the epoch
    batches: int = 1  # in the epoch
    best: float = math.inf  # validation perplexity
    best_update: int = 0
    worse: int = 0  # validations since the best
    validated: int = 0  # the last update followed by a validation
    rate: float = 1.0  # the learning rate as a share of the recipe's
    seconds: float = 0.0  # of training, all sessions together

    @classmethod
    def from_json(cls, plain: Mapping[str, Any], name: str) -> Progress:
        """Build the progress from progress.json.

        Args:
            plain: the fields, as `asdict` returned them.
            name: what an error calls the file.

        Raises:
            StorageError: a field is missing, unknown, or out of range.
        """
        progress = cls()
        for key, default in asdict(progress).items():
            value = plain.get(key)
            if not _is_valid(value, default):
                kind = "whole number" if isinstance(default, int) else "number"
                rule = f"{key} must be a {kind} of at least 0"
                raise StorageError(f"{name} is damaged: {rule}, not {value!r:.40}")
            setattr(progress, key, value)
        if unknown := plain.keys() - asdict(progress).keys():
            raise StorageError(f"{name} is damaged: it has {min(unknown)!r:.40}")
        if progress.batches == 0:
            raise StorageError(f"{name} is damaged: batches must be at least 1, not 0")
        bounds = {"position": "batches", "best_update": "update", "validated": "update"}
        for key, bound in bounds.items():
            if getattr(progress, key) > getattr(progress, bound):
                raise StorageError(f"{name} is damaged: its {key} is above its {bound}")
        return progress


def _is_valid(value: Any, default: float) -> bool:
    """Return whether a number has the default's type and is neither negative nor NaN."""
    kinds = (int,) if isinstance(default, int) else (int, float)
    return type(value) in kinds and value >= 0


class Watch:
    """Receives the events of a run; this base class ignores them."""

    def preparing(self, task: str, done: int, total: int) -> None:
        """Called while the data is prepared: lines done, and in all (0 if unknown)."""

    def epoch(self, progress: Progress, batches: int, recipe: Recipe) -> None:
        """Called when an epoch of `batches` batches begins or is resumed."""

    def report(self, record: dict[str, Any]) -> None:
        """Called for each record of the log; one of a validation has `valid_perplexity`."""


@dataclass
class Loop:
    """The training of a run, in its folder."""

    folder: Path
    store: Store
    updater: Updater
    watch: Watch = field(default_factory=Watch)
    progress: Progress = field(default_factory=Progress)

    def __post_init__(self) -> None:
        valid = self.store.valid
        if valid is None:
            way_out = "prepare it with --valid SOURCE TARGET"
            raise InvalidInput(f"{self.store.folder} has no validation pairs; {way_out}")
        self.model, self.recipe = self.updater.model, self.updater.recipe
        self.first = self.updater.processes.first
        self.valid = Batcher(valid, self.model.special, self.recipe.batch)
        self.log = self.folder / "log.jsonl"
        self.pending: list[tuple[Tensor, Index]] = []  # loss and pairs of updates not yet reported
        self.began = self.reported = time.monotonic()

    def run(self) -> str:
        """Train until a stopping criterion holds, and return it.

        Raises:
            StorageError: a checkpoint is damaged, or a file could not be written.
            TrainingError: the loss or its gradient is not finite.
        """
        self.resume()
        for pairs in self._remaining_batches():
            self.progress.update += 1
            self.progress.position += 1
            self._set_rate()
            self.pending.append((self.updater.update(pairs, self.progress.update), pairs))
            if len(self.pending) == REPORT_INTERVAL:
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
        """Return the stopping criterion that holds, or an empty string."""
        progress, recipe = self.progress, self.recipe
        if progress.worse >= recipe.patience:
            return f"{progress.worse} validations without a new best"
        if recipe.updates is not None and progress.update >= recipe.updates:
            return f"{recipe.updates:,} updates"
        return f"{recipe.epochs} epochs" if progress.epoch >= recipe.epochs else ""

    def report(self) -> None:
        """Log the updates since the last report, and check that they are finite."""
        if not self.pending:
            return
        pending, self.pending = self.pending, []
        losses, norms = torch.stack([numbers for numbers, _ in pending]).T.tolist()
        first_update = self.progress.update - len(pending) + 1
        for update, (loss, norm) in enumerate(zip(losses, norms, strict=True), first_update):
            if not math.isfinite(loss):
                self._raise_diverged(update, f"the loss is {loss}")
            if not math.isfinite(norm):
                self._raise_diverged(update, f"the gradient's norm is {norm}")
        clock, targets = time.monotonic(), self.updater.corpus.target.lengths
        sentences = sum(len(pairs) for _, pairs in pending)
        tokens = sum(int(targets[pairs].sum()) + len(pairs) for _, pairs in pending)
        record = {
            **self._timestamp(),
            "nll": sum(losses) / sentences,
            "perplexity": _perplexity(sum(losses), tokens),
            "gradient_norm": sum(norms) / len(norms),
            "tokens_per_second": round(tokens / max(1e-9, clock - self.reported)),
        }
        self.reported = clock
        self._log(record)

    def validate(self) -> None:
        """Compute the validation perplexity, keep the best model, and save a checkpoint."""
        self.report()
        progress = self.progress
        mean, perplexity = self.measure()
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
        measures = {"valid_nll": mean, "valid_perplexity": perplexity, "best": better}
        self._log(self._timestamp() | measures)
        self.save()
        self.reported = time.monotonic()

    @torch.no_grad()
    def measure(self) -> tuple[float, float]:
        """Return the NLL per sentence and the perplexity per token of the validation pairs."""
        self.model.eval()
        total = torch.zeros(2, dtype=torch.float64, device=self.updater.device)
        for pairs in self.valid.in_order():
            share = self.updater.processes.share(pairs)
            if len(share):
                batch = self.valid.batch(share).to(self.updater.device)
                with mixed_precision(self.recipe, self.updater.device):
                    summed = nll(self.model, batch)
                total += torch.stack([summed.double(), total.new_tensor(len(batch.positions))])
        self.model.train()
        nats, tokens = self.updater.processes.add(total).tolist()
        if not math.isfinite(nats):
            self._raise_diverged(self.progress.update, f"the validation loss is {nats}")
        return nats / len(self.valid.corpus), _perplexity(nats, tokens)

    def save(self) -> None:
        """Save a checkpoint to resume from."""
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
        """Restore the last checkpoint, if any."""
        last = checkpoint.newest(self.folder, "checkpoint")
        if last is not None:
            weights, tensors, saved = checkpoint.load_training(last)
            self._ensure_same_plan(last, saved.pop("plan", None))
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
        """Return the fields of config.json that describe how a model was trained."""
        training = {
            "update": self.progress.update,
            "epoch": self.progress.epoch,
            "perplexity": self.progress.best,
            "recipe": self.recipe.to_json(),
            "data": self.store.about["splits"],
        }
        longest = self.store.about.get("longest_seconds")
        return {"training": training} | ({} if longest is None else {"longest_seconds": longest})

    def plan(self) -> dict[str, str]:
        """Return digests of the model, recipe and data, without the stopping criteria."""
        recipe = self.recipe.to_json()
        recipe = {name: recipe[name] for name in recipe if name not in STOPPING_CRITERIA}
        parts = {"model": self.model.options, "recipe": recipe, "data": self.store.about}
        return {name: digest(part) for name, part in parts.items()}

    def _ensure_same_plan(self, last: Path, saved: Any) -> None:
        """Refuse to resume from a checkpoint of another model, recipe or data."""
        if not isinstance(saved, dict):
            raise StorageError(f"{last}/{checkpoint.PROGRESS} is damaged: it has no plan")
        for name, value in self.plan().items():
            if saved.get(name) != value:
                rule = f"the {name} of {self.folder} is not what {last.name} was trained with"
                raise StorageError(f"{rule}; restore it, or start another run")

    def _ensure_best(self) -> None:
        """Refuse to resume without the best model so far; a later one will be trained again."""
        if self.progress.best_update == 0 or not self.first:
            return
        best = checkpoint.newest(self.folder, "best")
        number = checkpoint.number_of(best) if best else 0
        expected = number == self.progress.best_update or number > self.progress.update
        if best is None or not expected:
            name = f"best-{self.progress.best_update}"
            raise StorageError(f"{self.folder} has lost {name}; restore it, or start another run")
        checkpoint.verify(best)

    def _optimiser_state(self, last: Path, tensors: dict[str, Tensor]) -> OptimiserState:
        """Group the optimiser's tensors by parameter; each is a scalar or has its shape."""
        state: OptimiserState = {}
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
            share = min(1.0, self._epochs() / self.recipe.epochs)
            rate *= 0.5 + 0.5 * math.cos(math.pi * share)
        for group in self.updater.optimiser.param_groups:
            group["lr"] = rate

    def _epochs(self) -> float:
        """Return the epochs done so far, with the share of the current one."""
        return self.progress.epoch + self.progress.position / self.progress.batches

    def _remaining_batches(self) -> Iterator[Index]:
        """Yield batches from the current position until a stopping criterion holds."""
        progress = self.progress
        while not self.reason():
            batches = self.updater.batcher.epoch(self.recipe.seed, progress.epoch)
            progress.batches = len(batches)
            self.watch.epoch(progress, len(batches), self.recipe)
            while progress.position < len(batches) and not self.reason():
                yield batches[progress.position]
            # The position is beyond the end if another device cut the epoch into more batches.
            if progress.position >= len(batches):
                progress.epoch, progress.position = progress.epoch + 1, 0

    def _validation_is_due(self) -> bool:
        if self.reason():  # the last update
            return True
        if self.recipe.validate is None:
            return self.progress.position == self.progress.batches
        return self.progress.update % self.recipe.validate == 0

    def _timestamp(self) -> dict[str, Any]:
        """Return the fields that every record of the log begins with."""
        return {
            "update": self.progress.update,
            "epoch": round(self._epochs(), 3),
            "seconds": round(time.monotonic() - self.began, 2),
        }

    def _log(self, record: dict[str, Any]) -> None:
        if self.first:
            log.append(self.log, record)
            self.watch.report(record)

    def _raise_diverged(self, update: int, reason: str) -> NoReturn:
        last = checkpoint.newest(self.folder, "checkpoint")
        kept = f"the last good checkpoint is {last}" if last else "there was no checkpoint yet"
        rate = self.recipe.rate * self.progress.rate
        moment = f"update {update} (epoch {self.progress.epoch + 1})"
        way_out = f"start another run, with a learning rate below {rate:g}"
        raise TrainingError(f"{reason} at {moment}; {kept}; {way_out}")


def _perplexity(nats: float, tokens: float) -> float:
    return math.exp(min(MAX_EXPONENT, nats / tokens))
