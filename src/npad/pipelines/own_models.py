"""Models that npad trained, from their folders, ready to decode from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from npad.errors import InvalidInput
from npad.models.cgru.fast import Prepared, prepared
from npad.models.low_precision import LowPrecision
from npad.pipelines.names import ModelReference
from npad.storage import checkpoint
from npad.storage.actors import load_actor
from npad.text.subwords import Subwords

COMMANDS = {"text": "npad translate", "picture": "npad caption", "sound": "npad transcribe"}


@dataclass(frozen=True)
class OwnModel:
    """A model, with its actor if it has one, and what its folder says of it."""

    model: Prepared
    subwords: checkpoint.Vocabularies  # source, if it is a text; target
    source_options: dict[str, Any]  # of its encoder
    about: dict[str, Any]  # config.json
    folder: Path
    digest: str  # of the weights

    @property
    def target(self) -> Subwords:
        """The vocabulary of the outputs."""
        return self.subwords[1]


def load_own(folder: str | Path, source: str, device: torch.device) -> OwnModel:
    """Load a model whose source is a "text", a "picture" or a "sound".

    Raises:
        InvalidInput: there is no such model, or it reads another source.
        StorageError: its files are damaged.
    """
    resolved = checkpoint.resolve(Path(folder))
    saved = checkpoint.load(resolved, device)
    if saved.model.source != source:
        kind = saved.model.source
        rule = f"{saved.model.name} is a model of {kind}s, not of {source}s"
        raise InvalidInput(f"{rule}; use it with {COMMANDS[kind]}")
    model, digest = prepared(saved.model), checkpoint.weights_digest(resolved)
    model.actor = load_actor(resolved, digest, device)
    options = dict(saved.model.source_encoder.options)
    return OwnModel(model, saved.subwords, options, saved.about, resolved, digest)


def source_of(reference: ModelReference) -> str:
    """Return what a model reads, without its weights: "text", "picture" or "sound".

    A Hugging Face model is taken for one of sounds, since this is asked where files are given.
    """
    if reference.folder is None:
        return "sound" if reference.pretrained is not None and not reference.chat else "text"
    config = checkpoint.read_config(checkpoint.resolve(reference.folder))
    return str(config.get("model", {}).get("source", "text"))


def in_precision(model: Any, precision: str) -> Any:
    """Return a model whose noisy chains run in a precision: itself in float32."""
    return model if precision == "float32" else LowPrecision(model, precision)
