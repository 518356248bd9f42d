"""npad train-actor: train a small network that brings greedy search nearer to a beam."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from npad.cli.display import Display, resumable
from npad.cli.options import (
    DEFAULT_MODEL,
    Device,
    ModelName,
    are_set,
    field_parameters,
    option,
    with_options,
)
from npad.cli.terminal import note
from npad.engine.devices import device_named
from npad.errors import InvalidInput
from npad.pipelines.names import SHIPPED
from npad.storage import checkpoint
from npad.storage.actors import install_actor
from npad.training.actors import ACTOR_RECIPE, ActorPlan, model_folder, resume_actor, train_actor

RECIPE_OPTIONS = ("learning_rate", "batch", "epochs", "patience", "precision", "seed")
_actor = partial(option, panel="The actor")


@with_options(
    *field_parameters(
        ActorPlan, "What to learn", ("width", "criterion", "dropout"), everyday=("width",)
    ),
    *field_parameters(ACTOR_RECIPE, "The recipe", RECIPE_OPTIONS, everyday=("batch", "epochs")),
)
def command(
    folder: Annotated[
        Path, typer.Argument(help="Folder of the run: candidates, checkpoints and log.")
    ],
    model: ModelName = DEFAULT_MODEL,
    data: Annotated[
        list[Path] | None, option("Source sentences, one per line; may be repeated.")
    ] = None,
    references: Annotated[
        list[Path] | None,
        option("Their references, a file per --data; for targets that are metrics."),
    ] = None,
    valid: Annotated[
        tuple[Path, Path] | None, option("Validation pairs.", metavar="SOURCE TARGET")
    ] = None,
    target: Annotated[
        list[str] | None,
        option(
            "Which candidate to learn: `beam`, its best, `length-normalised`, or the nearest "
            "to the reference by a metric, such as `bleu`; several are a mixture. [beam]"
        ),
    ] = None,
    resume: Annotated[bool, option("Continue the run in FOLDER.", "--resume")] = False,
    install: Annotated[
        bool, option("Store the best actor in the model's folder.", "--install")
    ] = False,
    device: Device = "auto",
    units: Annotated[int, _actor("Units of its hidden layer.")] = 512,
    layers: Annotated[int, _actor("Hidden layers.", hidden=True)] = 1,
    inputs: Annotated[
        str, _actor("What it reads, with commas: state, embedding, source.", hidden=True)
    ] = "state",
    sites: Annotated[
        str, _actor("Where it pushes, with commas: sites of the model's noise.", hidden=True)
    ] = "hidden",
    *,
    settings: dict[str, Any],
) -> None:
    """Train an actor, which brings greedy search nearer to a beam.

    The model decodes --data with a beam, once. The actor, a small network that pushes the model's
    state before every transition, then learns these outputs by Adam, whose learning rate is
    annealed to zero; the model stays as it is. `--decoder steered` is greedy search with the actor
    in the model's folder. An interrupted run continues with `npad train-actor FOLDER --resume`.

    Examples:

        npad train-actor runs/actor -m runs/en-cs --data train.en --valid valid.en valid.cs

        npad train-actor runs/actor --resume --install

        npad translate -m runs/en-cs --decoder steered "How are you?"
    """
    resolved = device_named(device, "--device")
    if install:
        _refuse_shipped(ActorPlan.load(folder).model if resume else model)
    watch = Display()
    with watch.live(), resumable("npad train-actor", folder):
        if resume:
            reached, reason = resume_actor(folder, resolved, watch)
        else:
            if not data or valid is None:
                raise InvalidInput(
                    "an actor learns from --data SOURCES and is validated on --valid SOURCE TARGET"
                )
            chosen = are_set(**settings)
            recipe = {name: chosen.pop(name) for name in RECIPE_OPTIONS if name in chosen}
            precision = "bfloat16" if resolved.type == "cuda" else "float32"
            plan = ActorPlan(
                model=model,
                data=_names(data),
                valid=(str(valid[0]), str(valid[1])),
                references=_names(references or []),
                targets=tuple(target or ["beam"]),
                sites=_split(sites),
                actor={
                    "units": units,
                    "layers": layers,
                    "inputs": list(_split(inputs)),
                },
                recipe=replace(ACTOR_RECIPE, **{"precision": precision} | recipe),
                **chosen,
            )
            reached, reason = train_actor(folder, plan, resolved, watch)
    criteria = f"greedy search {reached.initial:.2f}, best {reached.best:.2f}"
    print(f"Stopped after {reason}; {criteria}")
    best = checkpoint.newest(folder, "best")
    if reached.best_update == 0 or best is None:
        note("no actor was better than greedy search without one; there is none to install")
    elif install:
        place = model_folder(ActorPlan.load(folder).model)
        install_actor(best, place)
        shown = min(str(place), os.path.relpath(place), key=len)
        print(f"The best actor is installed in {shown}; use it with --decoder steered")
    else:
        print(f"The best actor is {best}")
        if not _is_shipped(ActorPlan.load(folder).model):
            print(f"npad train-actor {folder} --resume --install installs it in the model's folder")


def _refuse_shipped(model: str) -> None:
    """Raise InvalidInput for a model that is part of npad, which stays as it is."""
    if _is_shipped(model):
        raise InvalidInput(
            f"{model} is part of npad, and --install would change it; copy the folder "
            f"{model_folder(model)}, and train an actor for the copy with --model"
        )


def _is_shipped(model: str) -> bool:
    return model_folder(model).resolve() in {path.resolve() for path in SHIPPED.values()}


def _names(paths: list[Path]) -> tuple[str, ...]:
    return tuple(map(str, paths))


def _split(names: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in names.split(","))
