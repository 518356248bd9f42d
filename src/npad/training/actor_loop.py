"""Train an actor by back-propagation through the frozen model, in teacher forcing.

The loss is that of training a model, with the actor's pushes in its transitions. The model may drop
units while the actor learns: on sentences that it was trained on it is surer than on new ones, and
dropout takes some of that away. After every epoch greedy search with the actor decodes the
validation sources, and decides which actor is the best.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from npad.decoding import decode
from npad.errors import StorageError, TrainingError
from npad.models.actors import Actor, Trajectory
from npad.models.cgru.fast import prepared
from npad.models.cgru.model import AttentionModel
from npad.models.steered import Steered
from npad.noise.random import stable_hash
from npad.search.greedy import Greedy
from npad.storage import checkpoint
from npad.storage import jsonl as log
from npad.storage.actors import save_actor
from npad.storage.atomic import atomic_folder
from npad.storage.regular import file_digest, seal, unseal
from npad.training.batches import Batcher, Buckets
from npad.training.cuda_graphs import CapturedFeatures
from npad.training.likelihood import nll
from npad.training.recipe import Recipe
from npad.training.sources import Index
from npad.training.store import Corpus
from npad.training.update import mixed_precision

WEIGHTS = "actor.safetensors"
OPTIMISER = "optimiser.safetensors"
PROGRESS = "progress.json"
BEST = "best"
VALIDATION_ROWS = {"cuda": 1024, "cpu": 256}  # sentences decoded at a time


@dataclass
class ActorProgress:
    """The state of a run, as in progress.json."""

    update: int = 0
    epoch: int = 0  # epochs completed
    position: int = 0  # the next batch of the epoch
    best: float = -math.inf  # the criterion on the validation pairs
    best_update: int = -1
    greedy: float = -math.inf  # the criterion without an actor
    worse: int = 0  # validations since the best
    nats: float = 0.0  # of the epoch so far
    tokens: int = 0
    seconds: float = 0.0


class ActorWatch:
    """Receives the events of a run; this base class ignores them."""

    def preparing(self, task: str, done: int, total: int) -> None:
        """Called while sources are decoded: sources done, and in all."""

    def training(self, update: int, batch: int, batches: int) -> None:
        """Called after each update, with the batch of the epoch."""

    def report(self, record: dict[str, Any]) -> None:
        """Called for each validation with a record of the log, first for greedy search alone."""


@dataclass(frozen=True)
class Validation:
    """Greedy decoding of validation sources, and the criterion that its outputs are judged by.

    Attributes:
        sources: token lists.
        measure: maps the tokens of all outputs to a criterion, higher is better; None takes the
            mean clean log-probability of the outputs.
        max_length: tokens of an output.
    """

    sources: Sequence[Sequence[int]]
    measure: Callable[[list[tuple[int, ...]]], float] | None = None
    max_length: int = 200

    def __call__(self, model: Any) -> dict[str, float]:
        """Return the measures of greedy search over a model: `log_prob`, and `criterion`."""
        device = torch.device(model.device).type
        rows = VALIDATION_ROWS.get(device, VALIDATION_ROWS["cpu"])
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


@dataclass
class ActorLoop:
    """The training of an actor, in its folder.

    FOLDER/
      log.jsonl       a record per validation
      checkpoint-N/   to resume from
      best/           the actor with the best criterion, better than greedy search without one
    """

    folder: Path
    model: AttentionModel  # frozen
    actor: Actor
    pairs: Corpus
    validation: Validation
    recipe: Recipe
    checksum: str = ""  # of the model's weights
    about: dict[str, Any] = field(default_factory=dict)  # of the best actor's training
    watch: ActorWatch = field(default_factory=ActorWatch)
    stop: Callable[[], bool] = lambda: False  # asked before each epoch and every few updates
    dropout: float = 0.0  # of the frozen model, while the actor learns

    def __post_init__(self) -> None:
        self.device = self.model.device
        gpu = self.device.type == "cuda"
        self.model.requires_grad_(False).eval()
        self.actor.to(self.device).train()
        self.decoding = Steered(prepared(self.model), self.actor)
        self.batcher = (Buckets if gpu else Batcher)(
            self.pairs, self.model.special, self.recipe.batch
        )
        self.optimiser = self.recipe.optimise(self.actor.parameters(), self.device)
        self.features = CapturedFeatures(self.model) if gpu else None
        self.trajectory = Trajectory(self.actor)
        self.progress = ActorProgress()
        self.log = self.folder / "log.jsonl"
        self.began = time.monotonic()

    def run(self) -> str:
        """Train until a stopping criterion holds, and return it.

        Raises:
            StorageError: a checkpoint is damaged, or a file could not be written.
            TrainingError: the loss is not finite.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        self.resume()
        progress, recipe = self.progress, self.recipe
        if progress.best_update < 0:
            self._measure_greedy()
        while not (reason := self.reason()):
            batches = self.batcher.epoch(recipe.seed, progress.epoch)
            losses: list[tuple[Tensor, int]] = []
            while progress.position < len(batches):
                self._set_rate(progress.epoch + progress.position / len(batches))
                losses.append(self._update(batches[progress.position]))
                progress.update += 1
                progress.position += 1
                self.watch.training(progress.update, progress.position, len(batches))
                saves = progress.update % recipe.checkpoint == 0
                if len(losses) == 50 or saves or progress.position == len(batches):
                    self._add(losses)
                    losses = []
                    if saves and progress.position < len(batches):
                        self.save()
                    if self.stop():
                        break
            cut = progress.position < len(batches)
            if not cut:
                progress.epoch, progress.position = progress.epoch + 1, 0
            self.validate()
            if cut:
                return "out of time"
        return reason

    def reason(self) -> str:
        """Return the stopping criterion that holds, or an empty string."""
        progress, recipe = self.progress, self.recipe
        if progress.worse >= recipe.patience:
            return f"{progress.worse} validations without a new best"
        if progress.epoch >= recipe.epochs:
            return f"{recipe.epochs} epochs"
        return "out of time" if self.stop() else ""

    def _update(self, pairs: Index) -> tuple[Tensor, int]:
        """Take a gradient step; return the summed NLL [] and the number of tokens."""
        torch.manual_seed(stable_hash(f"{self.recipe.seed} {self.progress.update}"))
        batch = self.batcher.batch(pairs).to(self.device)
        with dropping(self.model, self.dropout), mixed_precision(self.recipe, self.device):
            loss = nll(self.model, batch, self.trajectory, self.features)
        (loss / len(pairs)).backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self.actor.parameters(), self.recipe.clip)
        self.optimiser.step()
        self.optimiser.zero_grad()
        return loss.detach(), len(batch.positions)

    def _add(self, losses: list[tuple[Tensor, int]]) -> None:
        """Add the losses of updates to the epoch's, in one host synchronisation."""
        nats = float(torch.stack([loss for loss, _ in losses]).double().sum())
        if not math.isfinite(nats):
            way_out = f"start another run, with a learning rate below {self.recipe.rate:g}"
            raise TrainingError(f"the loss is {nats} by update {self.progress.update}; {way_out}")
        self.progress.nats += nats
        self.progress.tokens += sum(tokens for _, tokens in losses)

    def _set_rate(self, epochs: float) -> None:
        rate = self.recipe.rate
        if self.recipe.anneal:
            rate *= 0.5 + 0.5 * math.cos(math.pi * min(1.0, epochs / self.recipe.epochs))
        for group in self.optimiser.param_groups:
            group["lr"] = rate

    def _measure_greedy(self) -> None:
        """Measure greedy search without pushes; an actor is the best only if it is better."""
        measures = self.validation(self.decoding.model)
        self.progress.greedy = self.progress.best = measures["criterion"]
        self.progress.best_update = 0
        self.watch.report({"update": 0, "epoch": 0, **measures, "best": False})
        self.save()

    def validate(self) -> None:
        """Decode the validation sources, keep the best actor, and save a checkpoint."""
        progress = self.progress
        self.actor.eval()
        measures = self.validation(self.decoding)
        self.actor.train()
        better = measures["criterion"] > progress.best
        progress.worse = 0 if better else progress.worse + 1
        if better:
            progress.best, progress.best_update = measures["criterion"], progress.update
            self.save_actor(self.folder / BEST)
        perplexity = math.exp(min(50.0, progress.nats / max(1, progress.tokens)))
        progress.nats, progress.tokens = 0.0, 0
        self._record(measures, perplexity, better)
        self.save()

    def save_actor(self, folder: Path) -> None:
        """Write the current actor, as it is stored beside a model."""
        training = self.about | {
            "pairs": len(self.pairs),
            "update": self.progress.update,
            "greedy": round(self.progress.greedy, 4),
            "best": round(self.progress.best, 4),
        }
        with atomic_folder(folder) as part:
            save_actor(part, self.actor, self.checksum, training)

    def _record(self, measures: dict[str, float], perplexity: float, best: bool) -> None:
        progress = self.progress
        record = {
            "update": progress.update,
            "epoch": progress.epoch,
            "seconds": round(progress.seconds + time.monotonic() - self.began, 2),
            "perplexity": perplexity,
            **measures,
            "best": best,
        }
        log.append(self.log, record)
        self.watch.report(record)

    def save(self) -> None:
        """Save a checkpoint to resume from."""
        now = time.monotonic()
        self.progress.seconds, self.began = self.progress.seconds + now - self.began, now
        state = self.optimiser.state_dict()["state"]
        optimiser = {f"{i}.{k}": x for i, parts in state.items() for k, x in parts.items()}
        files = {WEIGHTS: self.actor.state_dict(), OPTIMISER: optimiser}
        folder = self.folder / f"checkpoint-{self.progress.update}"
        with atomic_folder(folder) as part:
            for name, tensors in files.items():
                plain = {key: x.detach().cpu().contiguous() for key, x in tensors.items()}
                save_file(plain, part / name)
            content = {
                "progress": asdict(self.progress),
                "sha256": {name: file_digest(part / name) for name in files},
            }
            (part / PROGRESS).write_text(json.dumps(seal(content)) + "\n")
        checkpoint.keep_only(folder)

    def resume(self) -> None:
        """Restore the last checkpoint, if any."""
        last = checkpoint.newest(self.folder, "checkpoint")
        if last is not None:
            content = unseal(last / PROGRESS)
            for name, recorded in content["sha256"].items():
                if file_digest(last / name) != recorded:
                    raise StorageError(f"{last / name} is damaged; start another run")
            self.progress = ActorProgress(**content["progress"])
            best = self.progress.best_update > 0
            if best and not os.path.exists(self.folder / BEST):
                raise StorageError(f"{self.folder} has lost its best actor; start another run")
            self.actor.load_state_dict(load_file(last / WEIGHTS))
            state: dict[int, dict[str, Tensor]] = {}
            for key, tensor in load_file(last / OPTIMISER).items():
                number, _, name = key.partition(".")
                state.setdefault(int(number), {})[name] = tensor
            groups = self.optimiser.state_dict()["param_groups"]
            self.optimiser.load_state_dict({"state": state, "param_groups": groups})
        log.rewind(self.log, self.progress.update)
        self.began = time.monotonic()


@contextmanager
def dropping(model: AttentionModel, probability: float) -> Iterator[None]:
    """Drop units of a model in evaluation mode, whatever dropout it was trained with."""
    drop = model.drop
    own = drop.p
    drop.p = probability
    drop.train()
    try:
        yield
    finally:
        drop.p = own
        drop.eval()
