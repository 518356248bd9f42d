"""npad reproduce: the paper's tables, on your data."""

from __future__ import annotations

import shlex
import sys
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markdown import Markdown

from npad.cli.display import Display
from npad.cli.options import Device, MaxLength, MaxRows, Precision, complete_model, option
from npad.cli.placement import HERE, Placement, placed
from npad.cli.prepare import parse_sizes
from npad.cli.terminal import note
from npad.engine.devices import device_named
from npad.models.cgru.model import PRESETS
from npad.reproduce import reproduce as experiment
from npad.reproduce import tables
from npad.reproduce.data import ParallelText
from npad.search.greedy import Greedy
from npad.search.request import Decoding
from npad.validation import ensure_choice

_training = partial(option, panel="Training, without --model")


@placed
def command(
    folder: Annotated[Path, typer.Argument(help="Folder of the results; run again to continue.")],
    data: Annotated[
        Path,
        option(
            "Folder of parallel text, NAME.LANGUAGE[.gz|.xz]; NAME begins with valid or test, "
            "others are for training."
        ),
    ],
    source: Annotated[str, option("Source language, as in the files' names.", "--from")] = "en",
    target: Annotated[str | None, option("Target language. [the other one]", "--to")] = None,
    model: Annotated[
        str | None,
        option(
            "Model to measure instead of training one: `en-de` or a folder of `npad train`.",
            "--model",
            "-m",
            complete=complete_model,
        ),
    ] = None,
    title: Annotated[str | None, option("Title of the report. [the name of FOLDER]")] = None,
    seeds: Annotated[int, option("Seeds for every random row.", min=1)] = 3,
    device: Device = "auto",
    precision: Precision = "float32",
    max_length: MaxLength = 200,
    max_rows: MaxRows = 1024,
    where: Placement = HERE,
    recipe: Annotated[
        str, _training("`paper` (Adadelta, as Cho, 2016) or `adam` (for little data).")
    ] = "adam",
    units: Annotated[int, _training("Units per recurrent layer.")] = PRESETS["paper"]["units"],
    embedding: Annotated[int, _training("Embedding dimensions.")] = PRESETS["paper"]["embedding"],
    vocabulary: Annotated[
        str, _training("Vocabulary size: one number for both sides, or two: 8000,6000.")
    ] = "8000",
    epochs: Annotated[int, _training("Maximum passes over the training text.")] = 20,
) -> None:
    """Reproduce the paper's tables on your data, with a report.

    Trains a model unless --model names one, tunes all hyper-parameters on the validation text, and
    measures quality and cost of every row. Writes README.md, plots, and results.jsonl with a
    signature per row. An interrupted run continues where it stopped.

    Examples:

        npad reproduce runs/en-de --data tatoeba-en-de --model en-de

        npad reproduce runs/multi30k --data multi30k-en-cs --recipe paper --epochs 70
    """
    ensure_choice("recipe", recipe, tuple(experiment.RECIPES))
    resolved, text = device_named(device, "--device"), ParallelText.find(data, source, target)
    model_options, recipe_options = experiment.RECIPES[recipe]
    training = experiment.Training(
        {"units": units, "embedding": embedding, **model_options},
        experiment.recipe_for(recipe_options | {"epochs": epochs}, resolved),
        parse_sizes(vocabulary),
    )
    plan = experiment.Reproduction(
        text=text,
        title=title or folder.resolve().name,
        command=shlex.join(["npad", *sys.argv[1:]]),
        model=model,
        training=None if model else training,
        seeds=seeds,
        limits=Decoding(Greedy(), max_length, max_rows),
        device=resolved,
        precision=precision,
        engine=where.description,
    )
    watch = Display()
    with ExitStack() as engines, watch.live():
        plan = replace(plan, place=partial(where.place, engines, device, precision))
        bench = experiment.reproduce(folder, plan, watch, watch.measuring)
    Console().print(Markdown(tables.beside_paper(bench)))
    note(f"the report is in {folder}/README.md")
