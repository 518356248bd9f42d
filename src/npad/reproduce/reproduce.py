"""Reproduction of the paper's tables: train or load a model, measure, write the report.

FOLDER/
  setup.json  results.jsonl  README.md  *.png      the report and its data
  store/  model/  outputs/                          needed to resume
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from npad.engine.devices import PRECISIONS, ensure_computes
from npad.errors import InvalidInput, noting_interrupts
from npad.evaluate import plots
from npad.model import name_of
from npad.noise.noisy import Noise
from npad.pipelines.loading import load
from npad.pipelines.names import ModelReference
from npad.pipelines.translation import Translator
from npad.reproduce import report
from npad.reproduce.bench import LIMITS, Bench, EvaluationSet
from npad.reproduce.data import ParallelText, concatenate
from npad.reproduce.forecast import Forecast, Outlook
from npad.reproduce.report import Outline, Setup, about_model, machine
from npad.search.request import Decoding
from npad.storage import checkpoint
from npad.storage.atomic import exclusive_lock
from npad.training import run
from npad.training.loop import Watch
from npad.training.prepare import prepare
from npad.training.recipe import Recipe
from npad.validation import ensure_choice

# Options of the model and of the recipe. `paper` follows Cho (2016); `adam` suits small data.
RECIPES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "paper": (
        {"initialisation": "paper", "dropout": 0.0},
        {"optimiser": "adadelta", "batch": 2048, "validate": 500, "patience": 8},
    ),
    "adam": (
        {"initialisation": "glorot", "dropout": 0.3},
        {"optimiser": "adam", "learning_rate": 1e-3, "decay": 0.5, "batch": 2048, "patience": 4},
    ),
}


@dataclass(frozen=True)
class Training:
    """How to train a model: options of the model, recipe, and vocabulary sizes."""

    options: Mapping[str, Any]
    recipe: Recipe
    vocabulary: tuple[int, int] = (8000, 8000)  # source and target


def recipe_for(options: Mapping[str, Any], device: torch.device) -> Recipe:
    """Return a recipe with matrix products in bfloat16 on a GPU."""
    return Recipe(**options, precision="bfloat16" if device.type == "cuda" else "float32")


@dataclass(frozen=True)
class Reproduction:
    """What to measure, and with which model."""

    text: ParallelText
    title: str
    command: str
    model: str | None = None  # a name or folder for `npad.load`; None: train a model
    training: Training | None = None  # needed to train
    seeds: int = 3
    limits: Decoding = LIMITS  # a request whose limits all decoders have
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    precision: str = "float32"  # of NPAD's noisy chains
    engine: str = ""  # description of the workers; empty: this process
    # (translator, the model's folder) -> a translator that runs there
    place: Callable[[Translator, Path], Translator] = lambda translator, model: translator


def reproduce(
    folder: Path,
    plan: Reproduction,
    training_watch: Watch | None = None,
    progress: Callable[[str, Outlook], None] = lambda key, outlook: None,
    outline: Outline = report.OUTLINE,
    **further: Any,
) -> Bench:
    """Train the model if there is none, measure missing results, and write the report.

    An interrupted reproduction resumes when it is called again with the same folder.

    Args:
        folder: holds the model, results and the report.
        plan: what to measure.
        training_watch: informed of the progress of training.
        progress: called before each measurement with its key, and how far the report is.
        outline: what the report says.
        further: fields of the report's `Setup` that the outline reads.

    Raises:
        InvalidInput: the plan is wrong, or the folder holds results of another setup.
    """
    model: Path | None = None
    if plan.model:
        model = ModelReference.parse(plan.model).require_folder("be used by npad reproduce")
    sets = plan.text.sets()
    plots.ensure_matplotlib()
    ensure_choice("precision", plan.precision, tuple(PRECISIONS))
    ensure_computes(plan.device, plan.precision)
    with exclusive_lock(folder / ".lock", f"measuring in {folder}"):
        model = model or trained_model(folder, plan, training_watch)
        setup = replace(_setup(plan, model, sets), **further)
        _ensure_same(folder, setup)
        setup.save(folder)
        bench = outline.bench(
            folder,
            sets,
            partial(loaded, plan, model, sets),
            plan.seeds,
            plan.limits,
            lambda key, recorded: progress(key, forecast.outlook()),
        )
        forecast = Forecast(bench, partial(report.markdown_of, setup=setup, outline=outline))
        with _continuable(bench):
            report.write(bench, setup, outline)
        return bench


def _continuable(bench: Bench) -> AbstractContextManager[None]:
    """Add to an interrupt where the results are and how the measurements continue."""
    results, path = bench.record.results, bench.record.path
    way_on = "the same command continues after them"
    return noting_interrupts(lambda: f"{len(results):,} results are in {path}: {way_on}")


def loaded(plan: Reproduction, model: Path, sets: Mapping[str, EvaluationSet]) -> Translator:
    """Load a model, check that it can read every source, and warm it up."""
    translator = plan.place(load(model, plan.device, plan.precision), model).caching()
    for name, pairs in sets.items():
        translator.ensure_lengths(pairs.sources, f"{name}, line")
    first_sources = next(iter(sets.values())).sources[:2]
    translator.translate(first_sources, max_length=5)  # before anything is timed
    return translator


def trained_model(
    folder: Path, plan: Reproduction, watch: Watch | None, noise: Noise | None = None
) -> Path:
    """Train a model as planned, or resume its training; return its folder.

    Raises:
        InvalidInput: the plan does not say how to train, or the folder has a model of another plan.
    """
    if plan.training is None:
        raise InvalidInput("there is no model to train: give a recipe, or a model")
    model_folder = folder / (f"model-{noise.sigma:g}" if noise else "model")
    store = folder / "store"
    training = run.TrainingPlan(
        str(store.resolve()),
        plan.training.options,
        replace(plan.training.recipe, noise=noise),
    )
    if (model_folder / "run.json").exists():
        saved = run.TrainingPlan.load(model_folder)
        if (saved.options, saved.recipe) != (training.options, training.recipe):
            raise InvalidInput(
                f"{model_folder} was trained with other options; "
                "choose another folder, or measure it as it is with --model"
            )
        run.resume(model_folder, plan.device, watch)
        return model_folder
    if not store.exists():
        files = concatenate(plan.text.train, folder / "text")
        (valid,) = plan.text.valid.values()
        progress = (watch or Watch()).preparing
        prepare(store, files, valid, plan.training.vocabulary, progress=progress)
    run.train(model_folder, store, training.options, training.recipe, plan.device, watch)
    return model_folder


def _setup(plan: Reproduction, model: Path, sets: Mapping[str, EvaluationSet]) -> Setup:
    folder = checkpoint.resolve(model)
    digests = {"weights": _digest((folder / "model.safetensors").read_bytes())}
    digests |= {name: _digest(repr(pairs).encode()) for name, pairs in sets.items()}
    name = name_of(checkpoint.load(folder).model)
    name += "" if plan.precision == "float32" else f"+{plan.precision}"
    rows = f"{plan.limits.max_rows:,} rows at a time" + (f", {plan.engine}" if plan.engine else "")
    about = about_model(checkpoint.read_config(folder)) | {"machine": machine(plan.device, rows)}
    return Setup(
        title=plan.title,
        command=plan.command,
        model=name,
        sets={name: len(pairs.sources) for name, pairs in sets.items()},
        seeds=plan.seeds,
        max_length=plan.limits.max_length,
        about=about,
        digests=digests,
    )


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def _ensure_same(folder: Path, current: Setup) -> None:
    """Refuse to mix results of different models, texts or machines in one folder."""
    if not (folder / "setup.json").exists():
        return
    stored = Setup.load(folder)
    names = {"model": "the model", "sets": "the sets", "max_length": "max_length"}
    names |= {"digests": "the weights or the text", "machine": "the machine"}
    for field_name, name in names.items():
        old, new = ({**vars(setup), **setup.about}[field_name] for setup in (stored, current))
        if old and old != new:
            held = f"{folder} holds results with {name} {old}, not {new}"
            raise InvalidInput(f"{held}; choose another folder")
