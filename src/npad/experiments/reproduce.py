"""One command for the paper's tables: train a model or take one, measure, and write the report.

FOLDER/
  setup.json  results.jsonl  README.md  *.png      the report and what it was made of
  store/  model/  model-0.3/  outputs/              what it takes to go on
"""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from npad.engine.devices import PRECISIONS, ensure_computes
from npad.errors import InvalidInput
from npad.evaluate import plots
from npad.experiments import report
from npad.experiments.bench import Bench, Pairs
from npad.experiments.data import ParallelText, joined
from npad.experiments.report import Setup
from npad.model import name_of
from npad.noise.noisy import Noise
from npad.pipelines.names import ModelReference
from npad.pipelines.translation import Translator, load
from npad.storage import checkpoint
from npad.storage.atomic import exclusive_lock
from npad.training import run
from npad.training.loop import Watch
from npad.training.prepare import prepare
from npad.training.recipe import Recipe
from npad.validation import ensure_choice, ensure_number
from npad.version import __version__


@dataclass(frozen=True)
class Training:
    """How to train the model, where none is given."""

    options: Mapping[str, Any]
    recipe: Recipe
    vocabulary: tuple[int, int] = (8000, 8000)


@dataclass(frozen=True)
class Plan:
    """What to measure and with what.

    model: a name or folder for `npad.load`; None: train one. sigmas: train models with this noise, too.
    """

    text: ParallelText
    title: str
    command: str
    model: str | None = None
    training: Training | None = None
    sigmas: tuple[float, ...] = ()
    seeds: int = 3
    brief: bool = False
    exact: tuple[int, int] = (100, 500)
    max_length: int = 200
    max_rows: int = 1024
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    precision: str = "float32"  # of NPAD's noisy chains


def reproduce(
    folder: Path,
    plan: Plan,
    training: Watch | None = None,
    watch: Callable[[str, int], None] = lambda what, n: None,
) -> Bench:
    """Train if need be, measure what has not been, and write the report. Stopped at any moment, it goes on there."""
    models: dict[float, Path] = {}
    if plan.model:
        models[0.0] = ModelReference.parse(plan.model).require_folder("be used by npad reproduce")
    sets = plan.text.sets()
    plots.ensure_there()
    ensure_choice("precision", plan.precision, tuple(PRECISIONS))
    ensure_computes(plan.device, plan.precision)
    for sigma in plan.sigmas:
        ensure_number("the σ₀ to train with", sigma, above=0)
    with exclusive_lock(folder / ".lock", f"measuring in {folder}"):
        for sigma in (*(() if plan.model else (0.0,)), *plan.sigmas):
            models[sigma] = trained_model(folder, plan, sigma, training)

        def translator(sigma: float) -> Translator:
            made = load(models[sigma], plan.device, plan.precision)
            for name, pairs in sets.items():
                for i, size in made.too_long(pairs.sources).items():
                    raise InvalidInput(
                        f"line {i + 1} of {name} has {size} and {made.longest:,} symbols are allowed"
                    )
            made.translate(
                sets[next(iter(sets))].sources[:2], max_length=5
            )  # to warm up, before anything is timed
            return made

        setup = _setup(plan, models[0.0], sets)
        _ensure_same(folder, setup)
        setup.save(folder)
        bench = Bench(folder, sets, translator, plan.seeds, plan.max_length, plan.max_rows, watch)
        report.write(bench, setup)
        return bench


def trained_model(folder: Path, plan: Plan, sigma: float, watch: Watch | None) -> Path:
    """The folder of a model trained as planned, with noise if sigma is above 0; training goes on where it stopped."""
    if plan.training is None:
        raise InvalidInput("there is no model to train: give a recipe, or a model")
    here, store = folder / (f"model-{sigma:g}" if sigma else "model"), folder / "store"
    wanted = run.Plan(
        str(store.resolve()),
        plan.training.options,
        replace(plan.training.recipe, noise=Noise(sigma) if sigma else None),
    )
    if (here / "run.json").exists():
        was = run.Plan.load(here)
        if (was.options, was.recipe) != (wanted.options, wanted.recipe):
            raise InvalidInput(
                f"{here} was trained otherwise; choose another folder, or take it as it is: --model"
            )
        run.resume(here, plan.device, watch)
        return here
    if not store.exists():
        files = joined(plan.text.train, folder / "text")
        (valid,) = plan.text.valid.values()
        prepare(
            store, files, valid, plan.training.vocabulary, progress=(watch or Watch()).preparing
        )
    run.train(here, store, wanted.options, wanted.recipe, plan.device, watch)
    return here


def _setup(plan: Plan, model: Path, sets: Mapping[str, Pairs]) -> Setup:
    folder = checkpoint.resolve(model)
    config = checkpoint.read_config(folder)
    sizes = {name: len(pairs.sources) for name, pairs in sets.items()}
    about = {"sizes": _in_words(config["model"])}
    if "training" in config:
        made = config["training"]
        about["training"] = _in_words(
            {k: v for k, v in made["recipe"].items() if v not in (None, False)}
        )
        about["trained on"] = f"{made['data']['train']['kept']:,} pairs, {made['update']:,} updates"
        about["validation perplexity"] = f"{made['perplexity']:.3f}"
    gpu = (
        torch.cuda.get_device_name(plan.device)
        if plan.device.type == "cuda"
        else platform.machine()
    )
    about["machine"] = (
        f"{gpu}, {plan.max_rows:,} rows at a time, torch {torch.__version__}, npad {__version__}"
    )
    digests = {"weights": _digest((folder / "model.safetensors").read_bytes())}
    digests |= {name: _digest(repr(pairs).encode()) for name, pairs in sets.items()}
    name = name_of(checkpoint.load(folder).model)
    name += "" if plan.precision == "float32" else f"+{plan.precision}"
    wanted = {
        f: getattr(plan, f)
        for f in ("title", "command", "seeds", "max_length", "brief", "exact", "sigmas")
    }
    return Setup(model=name, sets=sizes, about=about, digests=digests, **wanted)


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def _in_words(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in values.items())


def _ensure_same(folder: Path, now: Setup) -> None:
    """Refuse to mix what was measured with another model, on other text or on another machine."""
    if not (folder / "setup.json").exists():
        return
    was = Setup.load(folder)
    for what, before, after in (
        ("the model", was.model, now.model),
        ("the sets", was.sets, now.sets),
        ("max_length", was.max_length, now.max_length),
        ("the weights or the text", was.digests, now.digests),
        ("the machine", was.about["machine"], now.about["machine"]),
    ):
        if before and before != after:
            raise InvalidInput(
                f"{folder} holds results with {what} {before}, not {after}; choose another folder"
            )
