"""Actors on disk, beside the model that they steer: `actor.json` and `actor.safetensors`.

`actor.json` holds the actor's options, the checksum of its weights, the checksum of the model's
weights that it was trained with, how it was trained, and the digest of all this. Weights are in
float16: half the size, and no less precise than the training that made them.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save

from npad.errors import InvalidInput, NpadError, StorageError
from npad.models.actors import Actor
from npad.storage.atomic import write_atomic
from npad.storage.checkpoint import WEIGHTS, read_config
from npad.storage.regular import file_digest, read_json, seal, unseal
from npad.validation import one_line
from npad.version import __version__

FORMAT = 1
ACTOR = "actor.json"
ACTOR_WEIGHTS = "actor.safetensors"
WAY_OUT = "train it again with npad train-actor"


def save_actor(folder: Path, actor: Actor, model: str, about: dict[str, Any]) -> None:
    """Write an actor's two files into a folder; the weights first, so that a crash is noticed.

    Args:
        folder: the folder of its model, or any other.
        actor: the actor.
        model: the checksum of the weights of its model, as `model_checksum` returns it.
        about: how it was trained.

    Raises:
        StorageError: a file could not be written.
    """
    weights = {name: x.detach().cpu().half().contiguous() for name, x in actor.state_dict().items()}
    stored = save(weights)
    content = {
        "format": FORMAT,
        "npad": __version__,
        "actor": actor.options,
        "model": model,
        "sha256": {ACTOR_WEIGHTS: hashlib.sha256(stored).hexdigest()},
        "training": about,
    }
    write_atomic(folder / ACTOR_WEIGHTS, stored)
    write_atomic(folder / ACTOR, json.dumps(seal(content), indent=2) + "\n")


def read_actor(folder: Path) -> dict[str, Any] | None:
    """Return the actor.json of a folder, verified; None if there is no actor.

    Raises:
        StorageError: it is damaged, was edited, or has a format that this npad does not read.
    """
    path = folder / ACTOR
    if not os.path.lexists(path):
        return None
    written = read_json(path).get("format")
    if written != FORMAT:
        rule = f"is of format {written!r:.20} and this npad ({__version__}) reads {FORMAT}"
        raise StorageError(f"{path} {rule}; {WAY_OUT}")
    return unseal(path)


def load_actor(
    folder: Path, model: str | None = None, device: str | torch.device = "cpu"
) -> Actor | None:
    """Load the actor of a folder, in float32; None if there is no actor.

    Args:
        folder: the folder.
        model: the checksum of the weights that it is to steer; None takes an actor for any model.
        device: where to put it.

    Raises:
        StorageError: a file is missing or damaged, or the actor is for another model.
    """
    about = read_actor(folder)
    if about is None:
        return None
    weights = folder / ACTOR_WEIGHTS
    try:
        if file_digest(weights) != about["sha256"][ACTOR_WEIGHTS]:
            raise StorageError(
                f"{weights} is damaged: its checksum is not the one in {ACTOR}; {WAY_OUT}"
            )
        if model is not None and about["model"] != model:
            raise StorageError(
                f"{folder / ACTOR} was trained for other weights than the model's; {WAY_OUT}, or "
                f"remove {ACTOR}"
            )
        with torch.device("meta"):  # no memory before the weights are known to fit
            actor = Actor(**about["actor"])
        stored = {name: x.float() for name, x in load_file(weights).items()}
        actor.load_state_dict(stored, assign=True)
    except (NpadError, OSError, SafetensorError, KeyError, TypeError, RuntimeError) as error:
        if isinstance(error, StorageError):
            raise
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise StorageError(f"{folder / ACTOR} is damaged: {reason}; {WAY_OUT}") from error
    return actor.to(device).eval()


def install_actor(actor: Path, folder: Path) -> None:
    """Copy an actor beside the model that it was trained for.

    Args:
        actor: the folder of the actor.
        folder: the model's folder.

    Raises:
        InvalidInput: there is no actor.
        StorageError: it is damaged or for another model, or could not be written.
    """
    loaded, about = load_actor(actor, model_checksum(folder)), read_actor(actor)
    if loaded is None or about is None:
        raise InvalidInput(f"{one_line(actor)} holds no actor: no {ACTOR}")
    save_actor(folder, loaded, about["model"], about["training"])


def model_checksum(folder: Path) -> str:
    """Return the checksum of a model folder's weights, as its config.json records it."""
    return str(read_config(folder)["sha256"][WEIGHTS])
