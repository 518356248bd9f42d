"""npad train: a token store, or parallel text, to a model."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer

from npad.cli.display import Display
from npad.cli.options import Device
from npad.cli.prepare import Joint, Longest, Sample, Tokenizers, Valid, Vocabulary, sizes
from npad.cli.terminal import console, note
from npad.engine.devices import device_named
from npad.errors import InvalidInput, NpadError
from npad.evaluate import plots
from npad.models.cgru.model import PRESETS
from npad.noise.registry import noise_from_names
from npad.storage import jsonl as log
from npad.training import run
from npad.training.loop import Progress
from npad.training.recipe import STOPPING_CRITERIA, Recipe
from npad.validation import ensure_choice

# What a preset stands for, besides its sizes.
HABITS: dict[str, dict[str, Any]] = {
    "paper": {"initialisation": "paper", "dropout": 0.0, "optimiser": "adadelta"},
    "small": {"initialisation": "glorot", "dropout": 0.2, "optimiser": "adam"},
}
DATA = ("data", "train", "valid", "vocabulary", "joint", "tokenizers", "longest", "sample")
MODEL = ("units", "embedding", "cell", "layers", "attention", "tied", "dropout", "initialisation")
RECIPE = (
    *(
        "optimiser",
        "learning_rate",
        "decay",
        "anneal",
        "clip",
        "batch",
        "epochs",
        "updates",
        "patience",
    ),
    *("validate", "checkpoint", "precision", "seed"),
)
NOISE = ("sigma", "schedule", "noise", "site", "relative")


def _data(help: str, *names: str, **rest: Any) -> Any:
    return typer.Option(*names, help=help, rich_help_panel="The data", **rest)


def _model(help: str, *names: str) -> Any:
    return typer.Option(*names, help=help, rich_help_panel="The model")


def _recipe(help: str, *names: str) -> Any:
    return typer.Option(*names, help=help, rich_help_panel="The recipe")


def command(
    folder: Annotated[
        Path, typer.Argument(help="The run's folder: its checkpoints, log and plot.")
    ],
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in FOLDER.")] = False,
    device: Device = "auto",
    data: Annotated[Path | None, _data("A store that `npad prepare` made.")] = None,
    train: Annotated[
        tuple[Path, Path] | None, _data("Or the training pairs as text.", metavar="SOURCE TARGET")
    ] = None,
    valid: Valid = None,
    vocabulary: Vocabulary = None,
    joint: Joint = None,
    tokenizers: Tokenizers = None,
    longest: Longest = None,
    sample: Sample = None,
    preset: Annotated[
        str | None,
        _model("`paper` (1028 units, Adadelta, …) or `small` (512, Adam, dropout). [small]"),
    ] = None,
    units: Annotated[int | None, _model("Units of every recurrent layer.")] = None,
    embedding: Annotated[int | None, _model("Dimensions of the embeddings.")] = None,
    cell: Annotated[str | None, _model("`gru` or `lstm`. [gru]")] = None,
    layers: Annotated[int | None, _model("Layers of encoder and decoder. [1]")] = None,
    attention: Annotated[bool | None, _model("Attend to the source, or see only its mean.")] = None,
    tied: Annotated[
        bool | None, _model("Output matrix and target embeddings are one.", "--tied")
    ] = None,
    dropout: Annotated[
        float | None, _model("Share of units dropped, of embeddings and readout.")
    ] = None,
    initialisation: Annotated[str | None, _model("`paper` (0.01·N(0, 1)) or `glorot`.")] = None,
    optimiser: Annotated[str | None, _recipe("`adam`, `adadelta` or `sgd`.")] = None,
    learning_rate: Annotated[
        float | None, _recipe("The optimiser's own unless given.", "--learning-rate", "--lr")
    ] = None,
    decay: Annotated[
        float | None, _recipe("The rate's factor after a validation without a new best. [1]")
    ] = None,
    anneal: Annotated[
        bool | None, _recipe("The rate falls to zero along a cosine, over all epochs.", "--anneal")
    ] = None,
    clip: Annotated[
        float | None, _recipe("The gradient's norm is brought down to this when above. [1]")
    ] = None,
    batch: Annotated[
        int | None, _recipe("Symbols a side and batch, padding included. [4096]")
    ] = None,
    epochs: Annotated[int | None, _recipe("Times through the data at most. [20]")] = None,
    updates: Annotated[int | None, _recipe("Updates at most.")] = None,
    patience: Annotated[
        int | None, _recipe("Validations without a new best before stopping. [5]")
    ] = None,
    validate: Annotated[int | None, _recipe("Updates between validations. [an epoch]")] = None,
    checkpoint: Annotated[int | None, _recipe("Updates between checkpoints. [1000]")] = None,
    precision: Annotated[
        str | None, _recipe("`float32`, or `bfloat16` for products. [bfloat16 on a GPU]")
    ] = None,
    seed: Annotated[int | None, _recipe("Of weights, order and noise. [0]")] = None,
    sigma: Annotated[float | None, _recipe("Train with noise of this σ₀.")] = None,
    schedule: Annotated[
        str | None, _recipe("Its σ over time, as in `npad translate`. [1/t]")
    ] = None,
    noise: Annotated[str | None, _recipe("Its distribution. [gaussian]")] = None,
    site: Annotated[str | None, _recipe("Where it enters. [hidden]")] = None,
    relative: Annotated[
        bool | None, _recipe("σ is a share of the RMS of what it perturbs.", "--relative")
    ] = None,
) -> None:
    """Train the paper's translation model, from text or from a prepared store.

    Killed at any moment, it loses no more than the updates since its last checkpoint: `npad train FOLDER --resume` goes
    on to the same weights. On several GPUs: `torchrun --nproc-per-node 4 -m npad train …`.

    Examples:

        npad train runs/en-cs --train train.en train.cs --valid valid.en valid.cs

        npad train runs/paper --data stores/en-cs --preset paper

        npad train runs/en-cs --resume --epochs 40
    """
    given = {name: value for name, value in locals().items() if value is not None}
    where = device_named(device, "--device")
    watch = Display() if int(os.environ.get("RANK", 0)) == 0 else None
    with _resumable(folder), watch.live() if watch else nullcontext():
        if resume:
            fixed = {"preset", *DATA, *MODEL, *RECIPE, *NOISE} - {*STOPPING_CRITERIA}
            for name in set(given) & fixed:
                flag = "--" + name.replace("_", "-")
                raise InvalidInput(
                    f"{flag} is the run's own and cannot change with --resume; start another run"
                )
            criteria = {name: given[name] for name in STOPPING_CRITERIA if name in given}
            progress, reason = run.resume(folder, where, watch, **criteria)
        else:
            progress, reason = run.train(
                folder, _text_or_store(given), *_plan(given, where.type), where, watch
            )
    if watch:
        _tell(folder, progress, reason)


@contextmanager
def _resumable(folder: Path) -> Iterator[None]:
    """Say of an interrupted run how it continues, where there is something to continue."""
    try:
        yield
    except KeyboardInterrupt as error:
        if (folder / "run.json").exists():
            error.add_note(f"npad train {folder} --resume continues")
        raise


def _plan(given: dict[str, Any], device: str) -> tuple[dict[str, Any], Recipe]:
    """The model's options and the recipe: a preset's, changed where asked."""
    preset = given.get("preset", "small")
    ensure_choice("preset", preset, tuple(PRESETS))
    habits = {
        **PRESETS[preset],
        **HABITS[preset],
        "precision": "bfloat16" if device == "cuda" else "float32",
    }
    asked = habits | given
    noise = {
        "distribution" if name == "noise" else name: given[name] for name in NOISE if name in given
    }
    if noise and "sigma" not in noise:
        raise InvalidInput("noise in training needs its --sigma")
    recipe = Recipe(
        **{name: asked[name] for name in RECIPE if name in asked},
        noise=noise_from_names(**noise) if noise else None,
    )
    return {name: asked[name] for name in MODEL if name in asked}, recipe


def _text_or_store(given: dict[str, Any]) -> Path | dict[str, Any]:
    """Where the data is: a store, or what `prepare` needs to make one."""
    if ("data" in given) == ("train" in given):
        raise InvalidInput(
            "training needs --data STORE, or --train SOURCE TARGET and --valid SOURCE TARGET"
        )
    text = {name: given[name] for name in DATA if name in given and name != "data"}
    if "data" in given:
        if text:
            flag = "--" + next(iter(text))
            raise InvalidInput(f"{flag} does not go with --data: a store is prepared already")
        return Path(given["data"])
    if "valid" not in text:
        raise InvalidInput(
            "training needs validation pairs, to know when to stop: --valid SOURCE TARGET"
        )
    if "vocabulary" in text:
        text["vocabulary"] = sizes(text["vocabulary"])
    if "longest" in text:
        text["max_length"] = text.pop("longest")
    for name in ("train", "valid", "tokenizers"):
        if name in text:
            text[name] = [one if str(one) == "-" else str(one.resolve()) for one in text[name]]
    return text


def _tell(folder: Path, progress: Progress, reason: str) -> None:
    """How it ended, and where things are."""
    best = f"best-{progress.best_update}: validation perplexity {progress.best:.2f}"
    out = console()
    out.print(f"Stopped after {reason}. {folder}/{best}", soft_wrap=True)
    try:
        plots.losses(log.read(folder / "log.jsonl"), folder / "loss.png")
        out.print(f"The curve is in {folder}/loss.png", soft_wrap=True)
    except NpadError as error:
        note(str(error))
    out.print(f"Try it: npad translate --model {folder} …", soft_wrap=True)
