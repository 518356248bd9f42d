"""npad reproduce: the paper's tables, and beyond them."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markdown import Markdown

from npad.cli.display import Display
from npad.cli.options import Device, MaxLength, MaxRows, Precision
from npad.cli.prepare import sizes
from npad.cli.terminal import note
from npad.engine.devices import device_named
from npad.errors import InvalidInput
from npad.experiments import reproduce as experiment
from npad.experiments import tables
from npad.experiments.data import ParallelText
from npad.models.cgru.model import PRESETS
from npad.training.recipe import Recipe
from npad.validation import ensure_choice

TRAINING = "The model, where none is given"
# What `adam` says is what learns on some ten thousand pairs; `paper` is the paper's throughout.
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


def _training(help: str) -> Any:
    return typer.Option(help=help, rich_help_panel=TRAINING)


def command(
    folder: Annotated[Path, typer.Argument(help="Where the results go; run it again to go on.")],
    data: Annotated[
        Path,
        typer.Option(help="Parallel text: NAME.LANGUAGE[.gz|.xz], NAME valid…, test… or other."),
    ],
    source: Annotated[
        str, typer.Option("--from", help="The source language, as the files are called.")
    ] = "en",
    target: Annotated[
        str | None, typer.Option("--to", help="The target language. [the other one]")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            "--model", "-m", help="A model to take: `en-de`, or a folder of `npad train`."
        ),
    ] = None,
    title: Annotated[
        str | None, typer.Option(help="The report's title. [the name of FOLDER]")
    ] = None,
    seeds: Annotated[int, typer.Option(help="Seeds of every row with chance in it.", min=1)] = 3,
    brief: Annotated[
        bool, typer.Option("--brief", help="The paper's tables and their claims, no more.")
    ] = False,
    exact: Annotated[int, typer.Option(help="Test sentences to search exactly.", min=1)] = 100,
    budget: Annotated[int, typer.Option(help="Model calls for each of them.", min=1)] = 500,
    device: Device = "auto",
    precision: Precision = "float32",
    max_length: MaxLength = 200,
    max_rows: MaxRows = 1024,
    recipe: Annotated[
        str, _training("`paper` (Adadelta, as Cho, 2016) or `adam` (for little data).")
    ] = "adam",
    units: Annotated[int, _training("Units of every recurrent layer.")] = PRESETS["paper"]["units"],
    embedding: Annotated[int, _training("Dimensions of the embeddings.")] = PRESETS["paper"][
        "embedding"
    ],
    vocabulary: Annotated[
        str, _training("Subwords: one number for both sides, or two: 8000,6000.")
    ] = "8000",
    epochs: Annotated[int, _training("Passes over the training text, at most.")] = 20,
    train_sigmas: Annotated[
        str, _training("Train again with noise of each of these σ₀, 0.1,0.3, and compare.")
    ] = "",
) -> None:
    """Run the paper's Tables 1 to 4 on your data, and what goes beyond them, and write a report.

    Trains a model or takes one; chooses every hyper-parameter on the validation text; measures each row with its cost.
    FOLDER gets README.md, plots, and results.jsonl with a signature for every row. Stopped, it goes on where it was.

    Examples:

        npad reproduce runs/en-de --data tatoeba-en-de --model en-de --brief

        npad reproduce runs/multi30k --data multi30k-en-cs --recipe paper --train-sigmas 0.1,0.3
    """
    ensure_choice("recipe", recipe, tuple(RECIPES))
    where, text = device_named(device, "--device"), ParallelText.find(data, source, target)
    options, habits = RECIPES[recipe]
    training = experiment.Training(
        {"units": units, "embedding": embedding, **options},
        Recipe(
            **habits, epochs=epochs, precision="bfloat16" if where.type == "cuda" else "float32"
        ),
        sizes(vocabulary),
    )
    noisy = _numbers(train_sigmas)
    if model is not None and noisy:
        raise InvalidInput(
            "--train-sigmas trains models to compare with one trained here: leave out --model"
        )
    plan = experiment.Plan(
        text=text,
        title=title or folder.resolve().name,
        command=shlex.join(["npad", *sys.argv[1:]]),
        model=model,
        training=None if model else training,
        sigmas=noisy,
        seeds=seeds,
        brief=brief,
        exact=(exact, budget),
        max_length=max_length,
        max_rows=max_rows,
        device=where,
        precision=precision,
    )
    watch = Display()
    with watch.live():
        bench = experiment.reproduce(folder, plan, watch, watch.measuring)
    Console().print(Markdown(tables.beside_paper(bench)))
    note(f"the report is in {folder}/README.md")


def _numbers(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(",") if part)
    except ValueError as error:
        raise InvalidInput(
            f"--train-sigmas must be numbers with commas between them, not {text!r}"
        ) from error
