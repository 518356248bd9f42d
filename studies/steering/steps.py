"""Steps of the experiment on steering: teacher, actors, and weights trained alike.

FOLDER/
  teacher-10-1/         what the beam found for the training sources
  actor-0/ …            an actor per seed
  weights-0/ …          all weights, trained on the same pairs
  outputs.jsonl.gz      a line per step and per row of the report
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from npad.errors import InvalidInput
from npad.metrics.bleu import Bleu
from npad.metrics.metric import Scorer
from npad.models.actors import Actor
from npad.models.cgru.fast import prepared
from npad.models.cgru.model import AttentionModel
from npad.models.steered import Steered
from npad.pipelines.names import ModelReference
from npad.reproduce.bench import EvaluationSet
from npad.reproduce.data import ParallelText
from npad.reproduce.record import Record
from npad.storage import checkpoint, jsonl
from npad.storage.actors import load_actor
from npad.storage.atomic import atomic_folder
from npad.storage.checkpoint import set_weights
from npad.text.files import read_lines
from npad.text.subwords import Detokeniser
from npad.training.batches import Buckets
from npad.training.loop import OUT_OF_TIME, Loop
from npad.training.store import PairCorpus
from npad.training.teacher import BeamOutputs, Teacher, decode_sources, pairs_of
from npad.training.update import ActorUpdater, ModelUpdater, Updater
from npad.training.validation import GreedySearch, Steering, Validation
from npad.version import __version__
from studies.hypotheses import Deadline, OutOfTime
from studies.steering.variant import WEIGHTS, Variant, joined, without_a_word

OUTPUTS = "outputs.jsonl.gz"
FILE = "weights.safetensors"
ACTOR = Variant("actor")
FINE_TUNING = Variant("weights", kind=WEIGHTS, rate=2e-4, epochs=3)

Note = Callable[[str], None]
Entry = dict[str, Any]  # a value of the record


def _option(default: int, help: str) -> Any:
    return field(default=default, metadata={"help": help})


@dataclass(frozen=True)
class Plan:
    """What to train and measure. Numbers are options of the command.

    Attributes:
        text: the training, validation and test texts; the first test set is measured.
        title: of the data set, in the report.
        model: a name or folder for `npad.load`.
        actor: the actor, its teacher and recipe.
        weights: the recipe of the weights that are trained on the same pairs.
        more: files of further sources, for variants with data=more.
        device: where to train and decode.
    """

    text: ParallelText
    title: str
    model: str
    actor: Variant = ACTOR
    weights: Variant = FINE_TUNING
    more: tuple[str, ...] = ()
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    seeds: int = _option(3, "of actors and of chance")
    weights_seeds: int = _option(3, "of the fine-tuned weights")
    sources: int = _option(0, "training sources to decode at most, chosen at random; 0: all")
    max_source: int = _option(50, "tokens of a training source at most")
    max_length: int = _option(100, "tokens of an output at most")
    sentences: int = _option(0, "of the validation and test set at most; 0: all")


NUMBERS = [field for field in fields(Plan) if "help" in field.metadata]


class Steps:
    """The steps of the experiment before its rows, each stored once in a folder.

    Args:
        folder: where everything is kept.
        plan: what to train and measure.
        minutes: begin nothing after so many minutes.
        note: called with a line of progress.
    """

    def __init__(self, folder: Path, plan: Plan, minutes: float, note: Note) -> None:
        self.folder, self.plan, self.note = folder, plan, note
        self.deadline = Deadline(minutes)
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / OUTPUTS
        self.record = Record(self.path, self.deadline)
        sets = list(plan.text.sets().items())
        limit = plan.sentences or None
        self.sets = {
            name: EvaluationSet(pairs.sources[:limit], pairs.references[:limit])
            for name, pairs in sets[:2]
        }
        (_, self.valid), (self.test_name, self.test) = self.sets.items()
        self.texts: dict[str, list[str]] = {}
        self.candidates: dict[tuple[str, Teacher], list[BeamOutputs]] = {}

    @cached_property
    def saved(self) -> checkpoint.Saved:
        """The model."""
        plan = self.plan
        folder = ModelReference.parse(plan.model).require_folder("be steered by an actor")
        saved = checkpoint.load(checkpoint.resolve(folder), plan.device)
        about = self.record.row(("about",), lambda: self._about(saved))
        if about["checksum"] != checksum_of(saved):
            raise InvalidInput(
                f"{self.folder} holds outputs of another model; choose another folder"
            )
        return saved

    def _about(self, saved: checkpoint.Saved) -> Entry:
        plan, about = self.plan, saved.about
        training = about.get("training", {})
        return {
            "title": plan.title,
            "set": self.test_name,
            "sentences": len(self.test.sources),
            "model": {"name": saved.model.name, **about["model"]},
            "perplexity": training.get("perplexity"),
            "checksum": checksum_of(saved),
            "max_length": plan.max_length,
            "max_source": plan.max_source,
            "torch": torch.__version__,
            "npad": __version__,
        }

    @cached_property
    def model(self) -> Any:
        """The model, prepared for decoding."""
        return prepared(self.saved.model)

    @cached_property
    def detokeniser(self) -> Detokeniser:
        return Detokeniser(self.saved.subwords[1])

    def encoded(self, texts: Sequence[str]) -> list[list[int]]:
        return self.saved.text_subwords()[0].encode(texts)

    @cached_property
    def validation(self) -> GreedySearch:
        """Greedy decoding of the validation sources, judged by BLEU."""
        bleu = Scorer(Bleu(), self.valid.references)
        return GreedySearch(
            self.encoded(self.valid.sources),
            lambda outputs: bleu.score(self.detokeniser.all(outputs)),
            self.plan.max_length,
        )

    def sources(self, name: str) -> list[str]:
        """Return the texts of a set of sources, none of them in the validation or test set."""
        if name not in self.texts:
            files = self.plan.more
            if name != "more":
                files = tuple(str(source) for source, _ in self.plan.text.train.values())
            if not files:
                way_out = "give --more" if name == "more" else "add training text to --data"
                raise InvalidInput(f"there are no sources {name!r} to learn from; {way_out}")
            texts = [line for file in files for line in read_lines(file) if line.strip()]
            if name == "varied":
                texts = [without_a_word(text, i) for i, text in enumerate(dict.fromkeys(texts))]
            known = {*self.valid.sources, *self.test.sources}
            known |= set() if name == "seen" else {*self.sources("seen")}
            texts = [text for text in dict.fromkeys(texts) if text not in known]
            lengths = [len(tokens) for tokens in self.encoded(texts)]
            longest = self.plan.max_source
            texts = [text for text, n in zip(texts, lengths, strict=True) if 0 < n <= longest]
            if 0 < self.plan.sources < len(texts):
                order = np.random.default_rng(0).permutation(len(texts))[: self.plan.sources]
                texts = [texts[i] for i in sorted(order.tolist())]
            if not texts:
                raise InvalidInput(f"no source of {name!r} has 1 to {longest} tokens")
            self.texts[name] = texts
        return self.texts[name]

    def taught(self, name: str, teacher: Teacher) -> list[BeamOutputs]:
        """Return what a beam finds for a set of sources."""
        if (name, teacher) not in self.candidates:
            label = f"teacher-{teacher.width}-{teacher.candidates}"
            folder = self.folder / (label if name == "seen" else f"{label}-{name}")
            sources = self.encoded(self.sources(name))
            checksum, stop = checksum_of(self.saved), self.deadline.over
            parts = decode_sources(folder, self.model, checksum, sources, teacher, stop=stop)
            if sum(len(part.places) for part in parts) < len(sources):
                raise OutOfTime
            self.note(f"{folder.name}: {len(sources):,} sources decoded")
            self.candidates[name, teacher] = parts
        return self.candidates[name, teacher]

    def pairs(self, variant: Variant) -> PairCorpus:
        """Return the pairs of sources and targets that a variant learns."""
        corpora = []
        for name in variant.data.split("+"):
            known = None
            if variant.differing:
                greedy = self.taught(name, Teacher(1))
                found = (pair for part in greedy for pair in part.hypotheses())
                known = {place: hypotheses[0][0] for place, hypotheses in found if hypotheses}
            parts, sources = self.taught(name, variant.teacher), self.encoded(self.sources(name))
            corpora.append(pairs_of(parts, sources, variant.targets.split("+"), known=known))
        return joined(corpora)

    def trained(self, variant: Variant, seed: int) -> Path:
        """Return the folder of the best actor or weights of a variant, trained unless it has been.

        Raises:
            OutOfTime: the time was over before it was trained.
        """
        folder = self.folder / f"{variant.name}-{seed}"
        kind = "weights" if variant.kind == WEIGHTS else "actor"

        def train() -> Entry:
            torch.manual_seed(seed)
            loop = self._loop(folder, variant, seed)
            if loop.run() == OUT_OF_TIME:
                raise OutOfTime
            improved = loop.progress.best_update > 0
            if not improved:
                loop.keep_current()
            greedy = self.validation(self.model)["criterion"]
            kept = ("epoch", "update", "perplexity", "log_prob", "criterion")
            curve = [
                {key: round(record[key], 5) for key in kept}
                for record in jsonl.read(loop.log)
                if "criterion" in record
            ]
            scores = " ".join(f"{point['criterion']:.2f}" for point in curve)
            self.note(f"{folder.name}: validation BLEU {greedy:.2f} → {scores}")
            return {
                "variant": asdict(variant),
                "pairs": len(loop.updater.corpus),
                "parameters": sum(x.numel() for x in loop.updater.network.parameters()),
                "greedy": greedy,
                "improved": improved,
                "curve": curve,
            }

        self.record.row((kind, variant.name, seed), train)
        best = checkpoint.newest(folder, "best")
        if best is None:
            raise InvalidInput(f"{folder} has lost its {kind}; remove {self.path} to start over")
        return best

    def _loop(self, folder: Path, variant: Variant, seed: int) -> Loop:
        """Return the training of an actor, or of all weights of a copy of the model."""
        model, device, pairs = self.saved.model, self.plan.device, self.pairs(variant)
        recipe, checksum = variant.recipe(device, seed), checksum_of(self.saved)
        about = asdict(variant) | {"pairs": len(pairs)}
        updater: Updater
        if variant.kind == WEIGHTS:
            model = copy.deepcopy(model).requires_grad_(True)
            updater = ModelUpdater(model, pairs, recipe, device)
            if device.type == "cuda":
                updater.batcher = Buckets(pairs, model.special, variant.batch)
            validation: Validation = FineTuning(model, self.validation)
        else:
            actor = Actor.for_model(
                model,
                variant.sites.split("+"),
                units=variant.units,
                layers=variant.layers,
                inputs=variant.inputs.split("+"),
            )
            updater = ActorUpdater(model, actor, pairs, recipe, variant.dropout)
            validation = Steering(model, actor, self.validation, checksum, about)
        if variant.decay:
            weights = updater.network.parameters()
            updater.optimiser = torch.optim.AdamW(weights, variant.rate, weight_decay=variant.decay)
        plan = {"model": checksum, "data": about}
        return Loop(folder, updater, validation, plan, stop=self.deadline.over)

    def searched(self, variant: Variant, seed: int) -> Any:
        """Return the model to decode with: steered by the actor, or with the fine-tuned weights."""
        folder = self.trained(variant, seed)
        if variant.kind == WEIGHTS:
            tuned = copy.deepcopy(self.saved.model)
            set_weights(tuned, load_file(folder / FILE))
            return prepared(tuned.requires_grad_(False).eval())
        return Steered(self.model, self.actor(variant, seed))

    def actor(self, variant: Variant, seed: int) -> Actor:
        """Return the best actor of a variant, trained unless it has been."""
        best = self.trained(variant, seed)
        actor = load_actor(best, checksum_of(self.saved), self.plan.device)
        if actor is None:
            raise InvalidInput(f"{best} has lost its actor; remove {self.path} to start over")
        return actor


class FineTuning(Validation):
    """Greedy search with all weights of a model trained on the pairs that an actor learns.

    Args:
        model: the model in training.
        search: decodes the validation sources.
    """

    criterion, lower_is_better = "criterion", False

    def __init__(self, model: AttentionModel, search: GreedySearch) -> None:
        self.model, self.search = model, search

    def measure(self, perplexity: float) -> dict[str, float]:
        self.model.eval()
        measures = self.search(prepared(self.model))
        self.model.train()
        return {"perplexity": perplexity, **measures}

    def save(self, folder: Path, progress: dict[str, Any]) -> None:
        with atomic_folder(folder) as part:
            save_file({name: x.detach() for name, x in self.model.named_parameters()}, part / FILE)

    def verify(self, folder: Path) -> None:
        load_file(folder / FILE)


def checksum_of(saved: checkpoint.Saved) -> str:
    """Return the checksum of a model's weights."""
    return str(saved.about["sha256"][checkpoint.WEIGHTS])
