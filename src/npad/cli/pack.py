"""npad pack: a trained model in int8."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from npad.errors import InvalidInput
from npad.pipelines.names import ModelReference
from npad.storage import checkpoint
from npad.storage.confidence import Confidence


def command(
    model: Annotated[str, typer.Argument(help="Folder that `npad train` wrote.")],
    folder: Annotated[Path, typer.Argument(help="Folder to create.")],
) -> None:
    """Copy a model with its matrices in int8: a quarter of the size.

    Each row of a matrix has its own scale. The model's confidence goes along.

    Example:

        npad pack runs/en-de models/en-de
    """
    if folder.exists():
        raise InvalidInput(f"{folder} exists already; choose another folder, or remove it first")
    source = checkpoint.resolve(ModelReference.parse(model).require_folder("be packed"))
    saved = checkpoint.load(source)
    confidence = Confidence.read(source, checkpoint.weights_digest(source))
    kept = ("training", "longest_seconds")
    about = {name: saved.about[name] for name in kept if name in saved.about}
    checkpoint.save(folder, saved.model, saved.subwords, about, packed=True)
    if confidence is not None:
        confidence.write(folder, checkpoint.weights_digest(folder))
    size = sum(path.stat().st_size for path in folder.iterdir())
    print(f"{folder}: {size / 2**20:.1f} MiB")
