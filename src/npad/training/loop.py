"""The training loop, for models and actors: updates, validation, checkpoints and early stopping.

RUN/
  log.jsonl       losses and validations
  checkpoint-N/   to resume from: the weights, the optimiser's tensors, and the progress
  best-N/         the weights that are best by validation, in the format that they are used in

An `Updater` takes the gradient steps, a `Validation` says how good the weights are. What an update
does depends on the plan of the run, the weights and its number alone, so a run that was killed and
resumed ends with the same weights, bit for bit.
"""

from __future__ import annotations

import json
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor

from npad.errors import StorageError, TrainingError
from npad.storage import checkpoint
from npad.storage import jsonl as log
from npad.storage.atomic import atomic_folder
from npad.storage.regular import digest, file_digest, seal, unseal
from npad.training.recipe import STOPPING_CRITERIA, Recipe
from npad.training.sources import Index
from npad.training.update import Updater
from npad.training.validation import Validation, perplexity_of
from npad.validation import counted

WEIGHTS, OPTIMISER, PROGRESS = "weights.safetensors", "optimiser.safetensors", "progress.json"
REPORT_INTERVAL = 10  # updates between reports, each of which synchronises with the GPU
OUT_OF_TIME = "out of time"


@dataclass
class RunProgress:
    """The state of a run, as in progress.json."""

    update: int = 0  # updates so far
    epoch: int = 0  # epochs completed
    position: int = 0  # the next batch of the epoch
    batches: int = 1  # in the epoch
    best: float = math.inf  # the criterion of validation
    best_update: int = 0  # 0: there is none
    initial: float | None = None  # the criterion before the first update, if it is one to beat
    worse: int = 0  # validations since the best
    validated: int = 0  # the last update followed by a validation
    rate: float = 1.0  # the learning rate as a share of the recipe's
    nats: float = 0.0  # the loss since the last validation
    tokens: int = 0  # that the loss is of
    seconds: float = 0.0  # of training, all sessions together


class Watch:
    """Receives the events of a run; this base class ignores them."""

    def preparing(self, task: str, done: int, total: int) -> None:
        """Called while the data is prepared: lines or sources done, and in all (0 if unknown)."""

    def epoch(self, progress: RunProgress, batches: int, recipe: Recipe) -> None:
        """Called when an epoch of `batches` batches begins or is resumed."""

    def report(self, record: dict[str, Any]) -> None:
        """Called for each record of the log; one of a validation has `best`."""


@dataclass
class Loop:
    """The training of a run, in its folder.

    Attributes:
        folder: of the run.
        updater: takes the gradient steps.
        validation: measures and saves the weights.
        plan: what determines the weights beside the recipe, by name: a checkpoint of another plan
            is refused.
        watch: receives the events of the run.
        stop: asked after every update whether to stop, as if out of time.
    """

    folder: Path
    updater: Updater
    validation: Validation
    plan: Mapping[str, Any] = field(default_factory=dict)
    watch: Watch = field(default_factory=Watch)
    stop: Callable[[], bool] = lambda: False

    def __post_init__(self) -> None:
        self.recipe, self.first = self.updater.recipe, self.updater.replicas.first
        self.progress = RunProgress(best=self.validation.worst)
        self.log = self.folder / "log.jsonl"
        self.pending: list[tuple[Tensor, Index]] = []  # loss and pairs of updates not yet reported
        self.began = self.reported = time.monotonic()

    def run(self) -> str:
        """Train until a stopping criterion holds, and return it.

        An interrupt or a SIGTERM ends the run after the current update or validation, with a
        checkpoint; a second one acts at once.

        Raises:
            KeyboardInterrupt: the run was interrupted; the argument is the signal.
            StorageError: a checkpoint is damaged, or a file could not be written.
            TrainingError: the loss, its gradient or a measure is not finite.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        self.resume()
        progress, first_number = self.progress, self.updater.first_number
        if progress.update == 0 and progress.initial is None:
            self.measure_start()
        with held_signals() as received:
            for pairs in self._remaining_batches():
                self._set_rate(progress.position + first_number)
                loss = self.updater.update(pairs, progress.update + first_number)
                self.pending.append((loss, pairs))
                progress.update += 1
                progress.position += 1
                if len(self.pending) == REPORT_INTERVAL:
                    self.report()
                if self._validation_is_due():
                    self.validate()
                elif progress.update % self.recipe.checkpoint == 0:
                    self.save()
                if self._is_interrupted(received) and not self.reason():
                    raise self._interrupted(*received[:1])
            if progress.validated != progress.update:
                self.validate()
        self.updater.network.eval()
        return self.reason()

    def reason(self) -> str:
        """Return the stopping criterion that holds, or an empty string."""
        progress, recipe = self.progress, self.recipe
        if progress.worse >= recipe.patience:
            return f"{counted(progress.worse, 'validation')} without a new best"
        if recipe.updates is not None and progress.update >= recipe.updates:
            return counted(recipe.updates, "update")
        if progress.epoch >= recipe.epochs:
            return counted(recipe.epochs, "epoch")
        return OUT_OF_TIME if self.stop() else ""

    def report(self) -> None:
        """Log the updates since the last report, and check that they are finite."""
        if not self.pending:
            return
        pending, self.pending = self.pending, []
        losses, norms = torch.stack([numbers for numbers, _ in pending]).T.tolist()
        first_update = self.progress.update - len(pending) + 1
        for update, (loss, norm) in enumerate(zip(losses, norms, strict=True), first_update):
            self._ensure_finite(update, {"the loss": loss, "the gradient's norm": norm})
        clock, targets = time.monotonic(), self.updater.corpus.target.lengths
        sentences = sum(len(pairs) for _, pairs in pending)
        tokens = sum(int(targets[pairs].sum()) + len(pairs) for _, pairs in pending)
        self.progress.nats += sum(losses)
        self.progress.tokens += tokens
        measures = {
            "nll": sum(losses) / sentences,
            "perplexity": perplexity_of(sum(losses), tokens),
            "gradient_norm": sum(norms) / len(norms),
            "tokens_per_second": round(tokens / max(1e-9, clock - self.reported)),
        }
        self.reported = clock
        self._log(measures)

    def measure_start(self) -> None:
        """Measure what the weights have to beat, if anything."""
        measures = self.validation.start()
        if measures is not None:
            self.progress.initial = self.progress.best = measures[self.validation.criterion]
            if self.first:
                self.watch.report({**self._timestamp(), **measures, "best": False})
            self.save()

    def validate(self) -> None:
        """Measure the weights, keep the best, and save a checkpoint."""
        self.report()
        progress = self.progress
        measures = self.validation.measure(perplexity_of(progress.nats, progress.tokens))
        self._ensure_finite(progress.update, measures)
        value = measures[self.validation.criterion]
        better = self.validation.is_better(value, progress.best)
        progress.worse = 0 if better else progress.worse + 1
        progress.validated, progress.nats, progress.tokens = progress.update, 0.0, 0
        if not better:
            progress.rate *= self.recipe.decay
        else:
            progress.best, progress.best_update = value, progress.update
            self.keep_current()
        self._log(measures | {"best": better})
        self.save()
        self.reported = time.monotonic()

    def keep_current(self) -> None:
        """Write the current weights as the best of the run."""
        if self.first:
            folder = self.folder / f"best-{self.progress.update}"
            self.validation.save(folder, asdict(self.progress))
            checkpoint.keep_only(folder)

    def save(self) -> None:
        """Save a checkpoint to resume from."""
        self.report()
        self.progress.seconds = time.monotonic() - self.began
        if not self.first:
            return
        state = self.updater.optimiser.state_dict()["state"]
        files = {
            WEIGHTS: dict(self.updater.network.named_parameters()),
            OPTIMISER: {
                f"{i}.{name}": x for i, parts in state.items() for name, x in parts.items()
            },
        }
        folder = self.folder / f"checkpoint-{self.progress.update}"
        with atomic_folder(folder) as part:
            for name, tensors in files.items():
                plain = {key: x.detach().cpu().contiguous() for key, x in tensors.items()}
                (part / name).write_bytes(save(plain))
            content = {
                "progress": asdict(self.progress),
                "plan": self._digests(),
                "sha256": {name: file_digest(part / name) for name in files},
            }
            (part / PROGRESS).write_text(json.dumps(seal(content), indent=2) + "\n")
        checkpoint.keep_only(folder)

    def resume(self) -> None:
        """Restore the last checkpoint, if any."""
        last = checkpoint.newest(self.folder, "checkpoint")
        if last is not None:
            content, weights, tensors = load_checkpoint(last)
            for name, value in self._digests().items():
                if content["plan"].get(name) != value:
                    rule = f"the {name} of {self.folder} is not what {last.name} was trained with"
                    raise StorageError(f"{rule}; restore it, or start another run")
            self.progress = _progress(content["progress"], last)
            self._ensure_best()
            checkpoint.set_weights(self.updater.network, weights)
            groups = self.updater.optimiser.state_dict()["param_groups"]
            state: dict[int, dict[str, Tensor]] = {}
            for key, tensor in tensors.items():
                number, _, name = key.partition(".")
                state.setdefault(int(number), {})[name] = tensor
            self.updater.optimiser.load_state_dict({"state": state, "param_groups": groups})
        if self.first:
            log.rewind(self.log, self.progress.update)
        self.reported = time.monotonic()
        self.began = self.reported - self.progress.seconds

    def best(self) -> Path | None:
        """Return the folder of the best weights, if any are better than the start."""
        return checkpoint.newest(self.folder, "best")

    def _digests(self) -> dict[str, str]:
        """Return digests of what determines the weights, without the stopping criteria."""
        recipe = self.recipe.to_json()
        recipe = {name: recipe[name] for name in recipe if name not in STOPPING_CRITERIA}
        return {name: digest(part) for name, part in {"recipe": recipe, **self.plan}.items()}

    def _ensure_best(self) -> None:
        """Refuse to resume without the best weights so far; later ones will be trained again."""
        if self.progress.best_update == 0 or not self.first:
            return
        best = self.best()
        number = checkpoint.number_of(best) if best else 0
        expected = number == self.progress.best_update or number > self.progress.update
        if best is None or not expected:
            name = f"best-{self.progress.best_update}"
            raise StorageError(
                f"{self.folder} has no {name} any more; restore it, or start another run"
            )
        self.validation.verify(best)

    def _set_rate(self, position: int) -> None:
        """Set the learning rate of an update, by its position in the epoch."""
        rate = self.recipe.rate * self.progress.rate
        if self.recipe.anneal:
            share = min(1.0, self._epochs(position) / self.recipe.epochs)
            rate *= 0.5 + 0.5 * math.cos(math.pi * share)
        for group in self.updater.optimiser.param_groups:
            group["lr"] = rate

    def _epochs(self, position: int) -> float:
        """Return the epochs done so far, with the share of the current one."""
        return self.progress.epoch + position / self.progress.batches

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

    def _is_interrupted(self, received: Sequence[int]) -> bool:
        """Return whether a signal was received, by any of several processes.

        They ask each other after reports alone, when all of them wait for their GPUs anyway.
        """
        replicas = self.updater.replicas
        if replicas.world == 1:
            return bool(received)
        if self.pending:
            return False
        return bool(replicas.add(torch.tensor(len(received), device=self.updater.device)))

    def _interrupted(self, number: int = signal.SIGINT) -> KeyboardInterrupt:
        """Save a checkpoint, and return the exception that ends the run."""
        self.save()
        error = KeyboardInterrupt(number)
        error.add_note(f"checkpoint-{self.progress.update} is written")
        return error

    def _validation_is_due(self) -> bool:
        if self.recipe.validate is None:
            return self.progress.position == self.progress.batches
        return self.progress.update % self.recipe.validate == 0

    def _timestamp(self) -> dict[str, Any]:
        """Return the fields that every record of the log begins with."""
        return {
            "update": self.progress.update,
            "epoch": round(self._epochs(self.progress.position), 3),
            "seconds": round(time.monotonic() - self.began, 2),
        }

    def _log(self, measures: Mapping[str, Any]) -> None:
        if self.first:
            record = {**self._timestamp(), **measures}
            log.append(self.log, record)
            self.watch.report(record)

    def _ensure_finite(self, update: int, measures: Mapping[str, float]) -> None:
        for name, value in measures.items():
            if not math.isfinite(value):
                last = checkpoint.newest(self.folder, "checkpoint")
                kept = f"the last good checkpoint is {last}" if last else "there is no checkpoint"
                rate = self.recipe.rate * self.progress.rate
                moment = f"update {update} (epoch {self.progress.epoch + 1})"
                way_out = f"start another run, with a learning rate below {rate:g}"
                raise TrainingError(f"{name} is {value} at {moment}; {kept}; {way_out}")


@contextmanager
def held_signals() -> Iterator[list[int]]:
    """Collect the first interrupt or SIGTERM inside, and let further ones act as before.

    Other handlers than Python's own are left alone, and threads other than the main one have none.
    """
    usual = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    plain = (signal.default_int_handler, signal.SIG_DFL)
    is_main = threading.current_thread() is threading.main_thread()
    held = [number for number, handler in usual.items() if is_main and handler in plain]
    received: list[int] = []

    def restore() -> None:
        for number in held:
            signal.signal(number, usual[number])

    def receive(number: int, frame: object) -> None:
        received.append(number)
        restore()

    for number in held:
        signal.signal(number, receive)
    try:
        yield received
    finally:
        restore()


def load_checkpoint(folder: Path) -> tuple[dict[str, Any], dict[str, Tensor], dict[str, Tensor]]:
    """Return the content of progress.json, the weights, and the optimiser's tensors.

    Raises:
        StorageError: a file is missing or damaged.
    """
    content = unseal(folder / PROGRESS)
    for name in (WEIGHTS, OPTIMISER):
        if file_digest(folder / name) != content["sha256"][name]:
            reason = f"its checksum is not the one in {PROGRESS}"
            raise StorageError(f"{folder / name} is damaged: {reason}; start another run")
    weights, tensors = (checkpoint.load_tensors(folder / name) for name in (WEIGHTS, OPTIMISER))
    return content, weights, tensors


def _progress(plain: dict[str, Any], folder: Path) -> RunProgress:
    """Return the progress of a checkpoint, whose digest has been verified."""
    if plain.keys() != {part.name for part in fields(RunProgress)}:
        raise StorageError(
            f"{folder / PROGRESS} was written by another version of npad; start another run"
        )
    progress = RunProgress(**plain)
    if progress.update != checkpoint.number_of(folder):
        raise StorageError(f"{folder} is damaged: it is of update {progress.update}")
    return progress
