"""Model folders: `config.json`, `model.safetensors` and tokenizer files. Nothing is unpickled.

A model of texts has two tokenizer files, one of pictures or sounds only that of its target.

A training run keeps one as `best-N`, of the update N with the lowest validation perplexity.

A folder may come from anywhere. Its files must be regular and match their checksums, config.json
included (older folders have none for it), and the header of the weights must fit the
configuration before memory is allocated.
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
from torch import Tensor, nn

from npad.engine.memory import out_of_memory_errors, total_memory
from npad.errors import InvalidInput, NpadError, OutOfMemory, StorageError
from npad.models.cgru.model import AttentionModel
from npad.models.int8 import SCALE, pack_weights, unpack_weights
from npad.models.network import without_weights
from npad.storage.atomic import atomic_folder, remove
from npad.storage.regular import digest, ensure_regular, file_digest, read_json
from npad.text.subwords import END, SIDES, TOKENIZER_FILES, Subwords
from npad.validation import one_line
from npad.version import __version__

FORMAT = 1
CONFIG = "config.json"
WEIGHTS = "model.safetensors"
NUMBERED = re.compile(r"(best|checkpoint)-(0|[1-9][0-9]*)")
Vocabularies = tuple[Subwords | None, Subwords]  # source, if it is a text; target
FLOATS = ("F64", "F32", "F16", "BF16")  # as a safetensors header names them


@dataclass(frozen=True)
class Saved:
    """A model loaded from its folder, with its subwords and configuration."""

    model: AttentionModel
    subwords: Vocabularies
    about: dict[str, Any]  # config.json

    def text_subwords(self) -> tuple[Subwords, Subwords]:
        """Return the vocabularies of source and target.

        Raises:
            InvalidInput: the source is not text.
        """
        source, target = self.subwords
        if source is None:
            kind, name = self.model.source, self.model.name
            raise InvalidInput(f"{name} is a model of {kind}s; this needs a model of texts")
        return source, target


def save(
    folder: Path,
    model: AttentionModel,
    subwords: Vocabularies,
    about: dict[str, Any],
    packed: bool = False,
) -> None:
    """Write a model folder atomically.

    Args:
        folder: the folder to write; an existing one is replaced.
        model: the model to save.
        subwords: the source and target vocabularies; no source's for pictures and sounds.
        about: further fields of config.json.
        packed: store the matrices as int8, for a model that ships.

    Raises:
        StorageError: the folder could not be written.
    """
    with atomic_folder(folder) as part:
        weights = {name: weight.detach().cpu() for name, weight in model.named_parameters()}
        tensors = pack_weights(weights) if packed else weights
        save_file({key: tensor.contiguous() for key, tensor in tensors.items()}, part / WEIGHTS)
        (part / WEIGHTS).chmod(0o644)  # safetensors makes it private
        for name, tokenizer in zip(TOKENIZER_FILES, subwords, strict=True):
            if tokenizer is not None:
                tokenizer.save(part / name)
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
    """Load a model for decoding, in float32, from its folder or from a training run's best.

    Raises:
        InvalidInput: there is no model at this path.
        StorageError: the folder is damaged or of another format.
        OutOfMemory: the weights are larger than the machine's memory.
    """
    folder = resolve(Path(folder)).resolve()
    about = read_config(folder)
    files = tokenizer_files(about)
    try:
        _ensure_options(about["model"])
        ensure_weights_fit(about["model"], folder / WEIGHTS)
        _verify_files(folder, about, WEIGHTS, *files)
        with out_of_memory_errors("load the model on a larger machine"):
            model = AttentionModel(**about["model"], initialisation="none")
            set_weights(model, unpack_weights(load_tensors(folder / WEIGHTS)))
    except (NpadError, KeyError, TypeError, RuntimeError, OverflowError) as error:
        if isinstance(error, StorageError | OutOfMemory):
            raise
        raise StorageError(f"{folder} is damaged: {_first_line(error)}") from error
    loaded = {name: Subwords.load(folder / name) for name in files}
    source, target = (loaded.get(name) for name in TOKENIZER_FILES)
    sizes = about["model"]["source_vocabulary"], about["model"]["target_vocabulary"]
    for side, tokenizer, size in zip(SIDES, (source, target), sizes, strict=True):
        if tokenizer is not None and tokenizer.size != size:
            rule = f"its {side} tokenizer has {tokenizer.size} tokens and its model {size}"
            raise StorageError(f"the vocabulary of {folder} does not fit: {rule}")
    model.name = (
        f"{folder.parent.name}/{folder.name}" if folder.name.startswith("best-") else folder.name
    )
    assert target is not None  # whatever the source
    return Saved(model.to(device).eval(), (source, target), about)


def tokenizer_files(about: dict[str, Any]) -> tuple[str, ...]:
    """Return the names of a model's tokenizer files, from its config.json."""
    return TOKENIZER_FILES if source_kind(about) == "text" else TOKENIZER_FILES[1:]


def source_kind(about: dict[str, Any]) -> str:
    """Return what a model reads, from its config.json: text, image or sound."""
    options = about.get("model")
    return str(options.get("source", "text")) if isinstance(options, dict) else "text"


def verify(folder: Path) -> None:
    """Verify the checksums of a model's files without loading them.

    Raises:
        StorageError: a file is missing or damaged.
    """
    about = read_config(folder)
    _verify_files(folder, about, WEIGHTS, *tokenizer_files(about))


def set_weights(model: nn.Module, weights: dict[str, Tensor]) -> None:
    """Copy weights into a model, whose parameters they must match in name and shape.

    Raises:
        StorageError: a weight is missing, unknown or of another shape.
    """
    parameters = dict(model.named_parameters())  # tied parameters come once
    shapes = {name: tuple(tensor.shape) for name, tensor in weights.items()}
    if mismatch := _mismatch(shapes, parameters):
        raise StorageError(f"the weights do not fit the model: {mismatch}")
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(weights[name])


def _ensure_options(options: object) -> None:
    """Require a model's options as npad writes them."""
    if not isinstance(options, dict):
        raise InvalidInput("'model' must hold the model's options")
    if options.get("eos", 0) != END:
        raise InvalidInput(
            f"eos must be {END}, the end token of npad's vocabularies, not {options['eos']!r}"
        )


def ensure_weights_fit(options: dict[str, Any], path: Path) -> None:
    """Compare the header of a weights file with a model's options, before memory is allocated.

    Args:
        options: the arguments of AttentionModel.
        path: the safetensors file.

    Raises:
        StorageError: the file is damaged or has other tensors than such a model.
        OutOfMemory: the weights are larger than the machine's memory.
    """
    shapes = _stored_shapes(path)
    layers = options.get("layers")
    if isinstance(layers, int) and layers > len(shapes):  # building them takes long, even on meta
        raise StorageError(
            f"{path} does not fit config.json: {layers:,} layers of {len(shapes):,} tensors"
        )
    with without_weights():
        model = AttentionModel(**options, initialisation="none")
    parameters = dict(model.named_parameters())
    if mismatch := _mismatch(shapes, parameters):
        raise StorageError(f"{path} does not fit config.json: {mismatch}")
    required = 4 * sum(weight.numel() for weight in parameters.values())  # bytes, in float32
    memory = total_memory(torch.device("cpu"))
    if required > memory:
        sizes = f"{required / 2**30:,.0f} GiB and there are {memory / 2**30:,.0f}"
        raise OutOfMemory(f"the weights {path} need {sizes}; load them on a larger machine")


def _stored_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the weights in a file, without int8 scales; read only its header."""
    ensure_regular(path)
    try:
        with safe_open(path, "pt") as file:
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
            shapes = {name: tuple(part.get_shape()) for name, part in slices.items()}
            dtypes = {name: part.get_dtype() for name, part in slices.items()}
    except (OSError, SafetensorError) as error:
        raise StorageError(f"{path} is damaged: {_first_line(error)}") from error
    matrices = {name for name, dtype in dtypes.items() if dtype == "I8" and len(shapes[name]) > 1}
    scales = {name + SCALE for name in matrices if shapes.get(name + SCALE) == shapes[name][:1]}
    for name, dtype in dtypes.items():
        if not (dtype in FLOATS or name + SCALE in scales):
            raise StorageError(
                f"{path} is damaged: {name} is {dtype}, neither floating-point nor int8 with scales"
            )
    return {name: shape for name, shape in shapes.items() if name not in scales}


def _mismatch(stored: dict[str, tuple[int, ...]], parameters: dict[str, Any]) -> str:
    """Return how stored shapes differ from a model's parameters, or an empty string."""
    expected = {name: tuple(parameter.shape) for name, parameter in parameters.items()}
    common = expected.keys() & stored.keys()
    wrong = sorted(name for name in common if expected[name] != stored[name])
    if wrong:
        return f"{wrong[0]} is {list(stored[wrong[0]])}, not {list(expected[wrong[0]])}"
    missing, unknown = expected.keys() - stored.keys(), stored.keys() - expected.keys()
    problems = {"missing": missing, "unknown": unknown}
    return ", ".join(f"{min(names)} is {problem}" for problem, names in problems.items() if names)


def resolve(folder: Path) -> Path:
    """Return the model folder of a path: the path itself, or the best model of a training run.

    Raises:
        InvalidInput: the path is neither.
    """
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
    """Return the folder `kind`-N of a run with the largest N, if any."""
    return max(_numbered(run, kind), default=(0, None))[1]


def number_of(folder: Path) -> int:
    """Return the N of a folder `best-N` or `checkpoint-N`."""
    return int(folder.name.rpartition("-")[2])


def keep_only(folder: Path) -> None:
    """Remove the folders of the same kind with a smaller N."""
    kind = folder.name.rpartition("-")[0]
    for number, sibling in _numbered(folder.parent, kind):
        if number < number_of(folder):
            remove(sibling)


def _numbered(run: Path, kind: str) -> list[tuple[int, Path]]:
    """List the folders `kind`-N of a run with their N; best-012 and best-² do not count."""
    paths = [path for path in run.glob(f"{kind}-*") if NUMBERED.fullmatch(path.name)]
    return [(number_of(path), path) for path in paths]


def read_config(folder: Path) -> dict[str, Any]:
    """Read a model's config.json and verify its format and checksum.

    Raises:
        InvalidInput: it is a Hugging Face model's.
        StorageError: it is damaged, was edited, or has a format that this npad does not read.
    """
    about = read_json(folder / CONFIG)
    if "format" not in about and "model_type" in about:
        raise InvalidInput(f"{folder} holds a Hugging Face model; write hf:{folder}")
    if "format" not in about:
        raise StorageError(f"{folder}/{CONFIG} is damaged: 'format' is missing")
    written = about["format"]
    if written != FORMAT:
        newer = isinstance(written, int) and written > FORMAT
        way_out = "install a newer npad" if newer else "it is not an npad model folder"
        rule = f"is of format {written} and this npad ({__version__}) reads {FORMAT}"
        raise StorageError(f"{folder} {rule}; {way_out}")
    sums = about.get("sha256")
    if isinstance(sums, dict) and CONFIG in sums and sums[CONFIG] != config_digest(about):
        raise StorageError(
            f"{folder}/{CONFIG} is damaged: its checksum is not the one that it holds"
        )
    training = about.get("training", {})
    if not (isinstance(training, dict) and isinstance(training.get("recipe", {}), dict)):
        raise StorageError(f"{folder}/{CONFIG} is damaged: 'training' must hold a recipe's options")
    return about


def weights_digest(folder: Path) -> str:
    """Return the SHA-256 of a model's weights, as its config.json has it.

    Raises:
        StorageError: as `read_config`, or it has none.
    """
    try:
        return str(read_config(folder)["sha256"][WEIGHTS])
    except (KeyError, TypeError) as error:
        raise StorageError(f"{folder / CONFIG} is damaged: {_first_line(error)}") from error


def config_digest(config: dict[str, Any]) -> str:
    """Return the checksum of a config.json: of its content, whatever its layout, without itself."""
    sums = {name: recorded for name, recorded in config["sha256"].items() if name != CONFIG}
    return digest(config | {"sha256": sums})


def _verify_files(folder: Path, about: dict[str, Any], *names: str) -> None:
    """Compare files with their checksums in config.json."""
    for name in names:
        try:
            sound = file_digest(folder / name) == about["sha256"][name]
        except (KeyError, TypeError) as error:
            raise StorageError(f"cannot read {folder / name}: {_first_line(error)}") from error
        if not sound:
            raise StorageError(
                f"{folder / name} is damaged: its checksum is not the one in config.json"
            )


def load_tensors(path: Path) -> dict[str, Tensor]:
    """Load the tensors of a safetensors file, which is known to be regular.

    Raises:
        StorageError: it cannot be read.
    """
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise StorageError(f"cannot read {path}: {_first_line(error)}") from error


def _first_line(error: BaseException) -> str:
    """Return the first line of a message, completed for a KeyError, which is only the key."""
    text = str(error).splitlines()[0] if str(error) else type(error).__name__
    return f"{text} is missing" if isinstance(error, KeyError) else text
