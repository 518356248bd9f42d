"""npad pack: a trained model, small enough to ship."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from npad.errors import InvalidInput
from npad.storage import checkpoint


def command(
    model: Annotated[Path, typer.Argument(help="A folder that `npad train` wrote.")],
    folder: Annotated[Path, typer.Argument(help="The folder to make.")],
) -> None:
    """Make a copy of a model with its matrices in int8, a scale per row: a quarter of the size.

    Example:

        npad pack runs/en-de models/en-de
    """
    if folder.exists():
        raise InvalidInput(f"{folder} is there already; choose another folder, or remove it first")
    saved = checkpoint.load(model)
    about = {name: saved.about[name] for name in ("training",) if name in saved.about}
    checkpoint.save(folder, saved.model, saved.subwords, about, packed=True)
    size = sum(path.stat().st_size for path in folder.iterdir())
    print(f"{folder}: {size / 2**20:.1f} MiB")
