"""Train an actor for a model in a folder, or resume its training.

RUN/
  run.json        model, data, actor and recipe of the run, with the digest of its content
  candidates/     what the beam found, in parts, decoded once
  best-N/         the best actor: actor.json and actor.safetensors
  and the other files of `training.loop`
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import torch

from npad.engine.devices import device_named, ensure_computes
from npad.errors import InvalidInput
from npad.metrics.bleu import Bleu
from npad.metrics.metric import Scorer
from npad.models.actors import Actor
from npad.models.cgru.fast import prepared
from npad.pipelines.names import SHIPPED, ModelReference
from npad.storage import checkpoint
from npad.text.files import display_name, read_lines, read_pairs
from npad.text.subwords import Detokeniser, Subwords
from npad.training.loop import Loop, RunProgress, Watch
from npad.training.recipe import Recipe
from npad.training.run import RUN, RunPlan, ensure_watch, run_in
from npad.training.teacher import (
    Teacher,
    candidates_needed,
    decode_sources,
    needs_references,
    pairs_of,
)
from npad.training.update import ActorUpdater, Replicas
from npad.training.validation import GreedySearch, Steering
from npad.validation import ensure_fields, one_line

ACTOR_RECIPE = Recipe(batch=8192, epochs=8, patience=5, anneal=True)


@dataclass(frozen=True)
class ActorPlan(RunPlan):
    """The model, data, actor and recipe of a run.

    Attributes:
        model: a name that `npad.load` takes, of a model that npad trained.
        data: files of source sentences, one per line.
        valid: files of validation sources and references.
        references: a file per file of `data`, or none.
        width: of the beam that decodes the sources.
        targets: which of the beam's candidates to learn; several are a mixture.
        criterion: of validation, under greedy decoding: "bleu", or "log-prob" of the clean model.
        sites: where the actor pushes.
        actor: its other options: units, layers, inputs.
        max_source: tokens of a source; longer ones are left out.
        dropout: of the model, while the actor learns.
        recipe: the hyper-parameters of training.
    """

    kind, lower = "actor", "batch or the width of the beam"
    model: str
    data: tuple[str, ...]
    valid: tuple[str, str]
    references: tuple[str, ...] = ()
    width: int = field(
        default=35, metadata={"help": "Width of the beam that decodes --data", "minimum": 1}
    )
    targets: tuple[str, ...] = ("beam",)
    criterion: Literal["bleu", "log-prob"] = field(
        default="bleu",
        metadata={"help": "What stops training: `bleu` or `log-prob` of greedy search"},
    )
    sites: tuple[str, ...] = ("hidden",)
    actor: dict[str, Any] = field(default_factory=dict)
    max_source: int = field(default=100, metadata={"minimum": 1})
    dropout: float = field(
        default=0.0,
        metadata={
            "help": "Share of the model's units that are dropped while the actor learns",
            "minimum": 0,
            "below": 1,
        },
    )
    recipe: Recipe = ACTOR_RECIPE

    def __post_init__(self) -> None:
        ensure_fields(self)
        candidates_needed(self.targets, self.width)
        if not self.data:
            raise InvalidInput("an actor learns from sources: give at least one file of --data")
        if self.references and len(self.references) != len(self.data):
            raise InvalidInput(
                f"references must be one file per file of data: {len(self.references)} and "
                f"{len(self.data)}"
            )
        for target in self.targets:
            if needs_references(target) and not self.references:
                raise InvalidInput(
                    f"the target {target} is the candidate nearest to a reference: give "
                    "--references, or choose the target beam"
                )

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"recipe": self.recipe.to_json()}

    @classmethod
    def from_json(cls, plain: dict[str, Any]) -> ActorPlan:
        tuples = {name: tuple(value) for name, value in plain.items() if isinstance(value, list)}
        return cls(**(plain | tuples | {"recipe": Recipe.from_json(plain["recipe"])}))

    def loop(self, folder: Path, device: torch.device, watch: Watch, replicas: Replicas) -> Loop:
        """Decode the sources, unless that is done, and return the loop that trains the actor."""
        saved = _load(self.model, device)
        source, target = saved.text_subwords()
        checksum = str(saved.about["sha256"][checkpoint.WEIGHTS])
        texts = read_texts(self.data, self.references, source, self.max_source)
        valid = read_texts(self.valid[:1], self.valid[1:], source, self.max_source)
        parts = decode_sources(
            folder / "candidates",
            prepared(saved.model),
            checksum,
            texts.sources,
            Teacher(self.width, candidates_needed(self.targets, self.width)),
            watch.preparing,
        )
        detokeniser = Detokeniser(target)
        pairs = pairs_of(parts, texts.sources, self.targets, texts.references, detokeniser.all)
        torch.manual_seed(self.recipe.seed)
        actor = Actor.for_model(saved.model, self.sites, **self.actor)
        measure = None
        if self.criterion == "bleu":
            assert valid.references is not None
            measure = bleu_of(valid.references, detokeniser)
        about = {
            "target": ", ".join(self.targets),
            "beam": self.width,
            "criterion": self.criterion,
            "dropout": self.dropout,
            "pairs": len(pairs),
        }
        search = GreedySearch(valid.sources, measure)
        return Loop(
            folder,
            ActorUpdater(saved.model, actor, pairs, self.recipe, self.dropout),
            Steering(
                saved.model, actor, search, checksum, about | {"recipe": self.recipe.to_json()}
            ),
            {"model": checksum, "actor": actor.options, "data": about},
            watch,
        )

    def absolute(self) -> ActorPlan:
        """Return the plan with absolute paths, so that it can be resumed from any directory."""
        folder = ModelReference.parse(self.model).folder
        named = folder is None or self.model in SHIPPED
        return replace(
            self,
            model=self.model if named else os.path.abspath(self.model),
            data=tuple(map(os.path.abspath, self.data)),
            valid=(os.path.abspath(self.valid[0]), os.path.abspath(self.valid[1])),
            references=tuple(map(os.path.abspath, self.references)),
        )


@dataclass(frozen=True)
class SourceTexts:
    """Sources as tokens, and references if there are any."""

    sources: list[list[int]]
    references: list[str] | None


def train_actor(
    folder: str | Path,
    plan: ActorPlan,
    device: str | torch.device = "cpu",
    watch: Watch | None = None,
) -> tuple[RunProgress, str]:
    """Train an actor from scratch; the best one is in `FOLDER/best-N`.

    Args:
        folder: the folder of the run, without a run so far.
        plan: the model, data, actor and recipe.
        device: where to decode and train.
        watch: receives the events of the run.

    Returns:
        The progress made, and the reason why training stopped.

    Raises:
        InvalidInput: an argument is invalid, or another process trains in the folder.
        StorageError: a file is damaged, or could not be written.
        TrainingError: the loss or its gradient is not finite.
    """
    folder = Path(folder)
    if (folder / RUN).exists():
        raise InvalidInput(
            f"{one_line(folder)} holds a run already; continue it with --resume, or choose another "
            "folder"
        )
    for file in (*plan.data, *plan.references, *plan.valid):
        if not Path(file).is_file():
            raise InvalidInput(f"cannot read {file}: there is no such file")
    Actor.for_model(_load(plan.model).model, plan.sites, **plan.actor)  # before anything is written
    plan.absolute().save(folder)
    return resume_actor(folder, device, watch)


def resume_actor(
    folder: str | Path, device: str | torch.device = "cpu", watch: Watch | None = None
) -> tuple[RunProgress, str]:
    """Continue an interrupted run; arguments, returns and errors are those of `train_actor`."""
    folder, device, watch = Path(folder), device_named(device), ensure_watch(watch)
    ensure_computes(device, ActorPlan.load(folder).recipe.precision)
    return run_in(folder, ActorPlan, device, watch)


def read_texts(
    files: Sequence[str], references: Sequence[str], subwords: Subwords, max_source: int
) -> SourceTexts:
    """Read sources, with references if given; blank and too long ones are left out.

    Without references, the first of several equal sources is kept.

    Raises:
        InvalidInput: a file and its references differ in lines, or nothing is left.
    """
    targets: list[str] = []
    if references:
        pairs = [read_pairs(Path(a), Path(b)) for a, b in zip(files, references, strict=True)]
        lines = [line for sources, _ in pairs for line in sources]
        targets = [line for _, texts in pairs for line in texts]
    else:
        lines = list(dict.fromkeys(line for file in files for line in read_lines(file)))
    kept = [
        i
        for i, (line, tokens) in enumerate(zip(lines, subwords.encode(lines), strict=True))
        if line.strip() and 0 < len(tokens) <= max_source
    ]
    if not kept:
        raise InvalidInput(
            f"{display_name(files[0])} has no source of 1 to {max_source} tokens; give other data"
        )
    sources = subwords.encode([lines[i] for i in kept])
    return SourceTexts(sources, [targets[i] for i in kept] if references else None)


def bleu_of(
    references: Sequence[str], detokeniser: Detokeniser
) -> Callable[[list[tuple[int, ...]]], float]:
    """Return a function from the tokens of all outputs to their BLEU against the references."""
    scorer = Scorer(Bleu(), references)
    return lambda outputs: scorer.score(detokeniser.all(outputs))


def model_folder(name: str) -> Path:
    """Return the folder of a model that npad trained, by its name.

    Raises:
        InvalidInput: there is no such model, or npad did not train it.
    """
    return checkpoint.resolve(ModelReference.parse(name).require_folder("be steered by an actor"))


def _load(name: str, device: str | torch.device = "cpu") -> checkpoint.Saved:
    """Load a model that npad trained, without preparing it for decoding."""
    return checkpoint.load(model_folder(name), device)
