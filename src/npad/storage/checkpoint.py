"""Models on disk: a folder with `config.json`, `model.safetensors` and two tokenizer files. Nothing is ever unpickled.

A run of training keeps two of them: `best-N`, of the update N with the lowest validation perplexity, and
`checkpoint-N`, the last one saved, which has what it takes to go on (`training.safetensors`, `progress.json`).

A folder may come from anywhere. Its files are regular ones and match their checksums, config.json included (older
folders have none for it), and the header of the weights fits the configuration before memory is allocated.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from npad.engine.memory import total_memory
from npad.errors import InvalidInput, NpadError, OutOfMemory, StorageError
from npad.models.cgru.model import AttentionModel
from npad.storage.atomic import atomic_folder, remove
from npad.storage.int8 import SCALE, packed, unpacked
from npad.storage.regular import ensure_regular
from npad.storage.sealed import digest, file_digest, read_json
from npad.text.subwords import END, Subwords
from npad.training.store import SIDES
from npad.validation import ensure_bool, one_line
from npad.version import __version__

FORMAT = 1
CONFIG = "config.json"
WEIGHTS = "model.safetensors"
TRAINING = "training.safetensors"
PROGRESS = "progress.json"
NUMBERED = re.compile(r"(best|checkpoint)-(0|[1-9][0-9]*)")
FLOATS = ("F64", "F32", "F16", "BF16")  # as a safetensors header names them
TOKENIZERS = tuple(f"{side}.tokenizer.json" for side in SIDES)


@dataclass(frozen=True)
class Saved:
    """A model with its subwords, and where it came from."""

    model: AttentionModel
    subwords: tuple[Subwords, Subwords]
    about: dict[str, Any]  # config.json


def save(
    folder: Path,
    model: AttentionModel,
    subwords: tuple[Subwords, Subwords],
    about: dict[str, Any],
    training: tuple[dict[str, Tensor], dict[str, Any]] | None = None,
    small: bool = False,
) -> None:
    """Write a model's folder, with `training` one to resume from: the optimiser's tensors, and the progress made.

    small: the matrices in int8, for a model that ships.
    """
    with atomic_folder(folder) as part:
        named = {
            name: weight.detach().cpu() for name, weight in model.named_parameters()
        }  # tied ones come once
        tensors = {WEIGHTS: packed(named) if small else named} | (
            {TRAINING: training[0]} if training else {}
        )
        for name, each in tensors.items():
            save_file({key: tensor.contiguous().cpu() for key, tensor in each.items()}, part / name)
            (part / name).chmod(0o644)  # the library makes it private
        if training:
            (part / PROGRESS).write_text(json.dumps(training[1], indent=2) + "\n")
        for name, one in zip(TOKENIZERS, subwords, strict=True):
            one.save(part / name)
        config = {
            "format": FORMAT,
            "npad": __version__,
            "kind": "attention",
            "model": model.options,
            "sha256": {path.name: file_digest(path) for path in sorted(part.iterdir())},
            **about,
        }
        config["sha256"][CONFIG] = config_digest(config)
        (part / CONFIG).write_text(json.dumps(config, indent=2) + "\n")


def load(folder: str | Path, device: str | torch.device = "cpu") -> Saved:
    """A model from its folder, or the best one of a training run, ready to decode; always in float32."""
    folder = resolve(Path(folder)).resolve()
    about = read_config(folder)
    for name in (WEIGHTS, *TOKENIZERS):
        ensure_regular(folder / name)
    try:
        _ensure_options(about["model"])
        ensure_weights_fit(about["model"], folder / WEIGHTS)
        _verify(folder, about, WEIGHTS, *TOKENIZERS)
        model = AttentionModel(**about["model"], initialisation="none")
        set_weights(model, unpacked(_tensors(folder / WEIGHTS)))
    except (NpadError, KeyError, TypeError, RuntimeError, OverflowError) as error:
        if isinstance(error, StorageError | OutOfMemory):
            raise
        raise StorageError(f"{folder} is damaged: {_first(error)}") from error
    source, target = (Subwords.load(folder / name) for name in TOKENIZERS)
    sizes = about["model"]["source_vocabulary"], about["model"]["target_vocabulary"]
    for side, one, size in zip(SIDES, (source, target), sizes, strict=True):
        if one.size != size:
            rule = f"its {side} tokenizer has {one.size} symbols and its model {size}"
            raise StorageError(f"the vocabulary of {folder} does not fit: {rule}")
    model.name = (
        f"{folder.parent.name}/{folder.name}" if folder.name.startswith("best-") else folder.name
    )
    return Saved(model.to(device).eval(), (source, target), about)


def load_training(folder: Path) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Any]]:
    """What it takes to go on: the weights, the optimiser's tensors, and the progress made."""
    _verify(folder, read_config(folder), WEIGHTS, TRAINING, PROGRESS)
    progress = read_json(folder / PROGRESS)
    return _tensors(folder / WEIGHTS), _tensors(folder / TRAINING), progress


def verify(folder: Path) -> None:
    """Hold a model's files to their checksums, without loading them."""
    _verify(folder, read_config(folder), WEIGHTS, *TOKENIZERS)


def set_weights(model: AttentionModel, weights: dict[str, Tensor]) -> None:
    """Give a model its weights, all of them and no others."""
    parameters = dict(model.named_parameters())  # tied ones come once
    misfit = _misfit({name: tuple(tensor.shape) for name, tensor in weights.items()}, parameters)
    if misfit:
        raise StorageError(f"the weights do not fit the model: {misfit}")
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(weights[name])


def _ensure_options(options: object) -> None:
    """Require a model's options as npad writes them."""
    if not isinstance(options, dict):
        raise InvalidInput("'model' must hold the model's options")
    if options.get("eos", 0) != END:
        raise InvalidInput(
            f"eos must be {END}, the end symbol of npad's vocabularies, not {options['eos']!r}"
        )
    for name in ("attention", "tied"):
        ensure_bool(name, options.get(name, False))


def ensure_weights_fit(options: dict[str, Any], path: Path) -> None:
    """Compare the header of a file of weights with a model's options, before memory is allocated for either."""
    stored = _stored_shapes(path)
    layers = options.get("layers", 1)
    if isinstance(layers, int) and layers > len(
        stored
    ):  # to build so many takes long even without memory
        raise StorageError(
            f"{path} does not fit config.json: {layers:,} layers of {len(stored):,} tensors"
        )
    with torch.device("meta"):
        model = AttentionModel(**options, initialisation="none")
    parameters = dict(model.named_parameters())
    misfit = _misfit(stored, parameters)
    if misfit:
        raise StorageError(f"{path} does not fit config.json: {misfit}")
    need, there = (
        4 * sum(weight.numel() for weight in parameters.values()),
        total_memory(torch.device("cpu")),
    )
    if need > there:
        sizes = f"{need / 2**30:,.0f} GiB and there are {there / 2**30:,.0f}"
        raise OutOfMemory(f"the weights {path} need {sizes}; load them on a larger machine")


def _stored_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """The shapes of the weights in a file, int8 ones as they are unpacked; only its header is read."""
    ensure_regular(path)
    try:
        with safe_open(path, "pt") as file:
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
            shapes = {name: tuple(part.get_shape()) for name, part in slices.items()}
            kinds = {name: part.get_dtype() for name, part in slices.items()}
    except (OSError, SafetensorError) as error:
        raise StorageError(f"{path} is damaged: {_first(error)}") from error
    small = {name for name, kind in kinds.items() if kind == "I8" and len(shapes[name]) == 2}
    scales = {name + SCALE for name in small if shapes.get(name + SCALE) == shapes[name][:1]}
    for name, kind in kinds.items():
        if not (kind in FLOATS or name + SCALE in scales):
            raise StorageError(
                f"{path} is damaged: {name} is {kind}, neither floating-point nor int8 with scales"
            )
    return {name: shape for name, shape in shapes.items() if name not in scales}


def _misfit(stored: dict[str, tuple[int, ...]], parameters: dict[str, Any]) -> str:
    """How stored tensors differ from a model's parameters, by name and shape; empty if they do not."""
    wanted = {name: tuple(parameter.shape) for name, parameter in parameters.items()}
    wrong = sorted(name for name in wanted.keys() & stored.keys() if wanted[name] != stored[name])
    if wrong:
        return f"{wrong[0]} is {list(stored[wrong[0]])}, not {list(wanted[wrong[0]])}"
    problems = {"missing": wanted.keys() - stored.keys(), "unknown": stored.keys() - wanted.keys()}
    return ", ".join(f"{min(names)} is {problem}" for problem, names in problems.items() if names)


def resolve(folder: Path) -> Path:
    """The folder of the model itself: of a run, its best."""
    if (folder / CONFIG).is_file():
        return folder
    best = newest(folder, "best")
    if best is None:
        if not folder.exists():
            raise InvalidInput(
                f"there is no model {one_line(folder)}: neither a folder nor a name that npad knows"
            )
        raise InvalidInput(
            f"{one_line(folder)} holds no model: neither config.json, nor best-N of a training run"
        )
    return best


def newest(run: Path, kind: str) -> Path | None:
    """The latest folder `kind`-N of a run."""
    return max(_numbered(run, kind), default=(0, None))[1]


def number_of(folder: Path) -> int:
    """The N of a folder `best-N` or `checkpoint-N`."""
    return int(folder.name.rpartition("-")[2])


def keep_only(folder: Path) -> None:
    """Remove the older ones of its kind."""
    kind = folder.name.rpartition("-")[0]
    for number, other in _numbered(folder.parent, kind):
        if number < number_of(folder):
            remove(other)


def _numbered(run: Path, kind: str) -> list[tuple[int, Path]]:
    """The folders `kind`-N of a run with their N; best-012 and best-² are none."""
    paths = [path for path in run.glob(f"{kind}-*") if NUMBERED.fullmatch(path.name)]
    return [(number_of(path), path) for path in paths]


def read_config(folder: Path) -> dict[str, Any]:
    """A model's config.json, unchanged and of a format that this npad reads."""
    about = read_json(folder / CONFIG)
    if "format" not in about:
        raise StorageError(f"{folder}/{CONFIG} is damaged: 'format' is missing")
    written = about["format"]
    if written != FORMAT:
        newer = isinstance(written, int) and written > FORMAT
        way_out = "install a newer npad" if newer else "it is none of npad's"
        raise StorageError(
            f"{folder} is of format {written} and this npad ({__version__}) reads {FORMAT}; {way_out}"
        )
    sums = about.get("sha256")
    if isinstance(sums, dict) and CONFIG in sums and sums[CONFIG] != config_digest(about):
        raise StorageError(
            f"{folder}/{CONFIG} is damaged: its checksum is not the one that it holds"
        )
    return about


def config_digest(config: dict[str, Any]) -> str:
    """The checksum of a config.json: of its content without this checksum, whatever its layout."""
    sums = {name: recorded for name, recorded in config["sha256"].items() if name != CONFIG}
    return digest(config | {"sha256": sums})


def _verify(folder: Path, about: dict[str, Any], *names: str) -> None:
    """See that files are as they were written."""
    for name in names:
        try:
            sound = file_digest(folder / name) == about["sha256"][name]
        except (KeyError, TypeError) as error:
            raise StorageError(f"cannot read {folder / name}: {_first(error)}") from error
        if not sound:
            raise StorageError(
                f"{folder / name} is damaged: its checksum is not the one in config.json"
            )


def _tensors(path: Path) -> dict[str, Tensor]:
    ensure_regular(path)
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise StorageError(f"cannot read {path}: {_first(error)}") from error


def _first(error: BaseException) -> str:
    """The first line of a message, with what a bare KeyError leaves out."""
    text = str(error).splitlines()[0] if str(error) else type(error).__name__
    return f"{text} is missing" if isinstance(error, KeyError) else text
