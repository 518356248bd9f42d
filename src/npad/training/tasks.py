"""Tasks whose source is no text: captions of pictures, transcripts of sounds."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from npad.errors import InvalidInput
from npad.models.encoders.efficientnet import CELLS, CHANNELS, NETWORKS
from npad.pipelines.pictures import read_picture
from npad.pipelines.sound import log_mel, read_wav
from npad.training.sources import Pictures, Sounds, Source
from npad.validation import brief, ensure_choice, ensure_integer

SOURCES = {"caption": "picture", "speech": "sound"}
# Options of a source's encoder that the data fix; a model's `source_options` hold them and others.
FEATURES = {"picture": {"size": 80}, "sound": {"rate": 8000, "bins": 40}}
MAX_FEATURE = 1 << 20
NETWORK = "network"  # the optional feature of a picture: the frozen network that encoded it
NETWORK_FILE = "picture.safetensors"  # of a store: that network
FILES = {
    "picture": ["source.items", "source.pixels"],
    "cells": ["source.items", "source.cells"],
    "sound": ["source.items", "source.frames", "source.ends"],
}


@dataclass(frozen=True)
class Task:
    """What a store's source is, and with which features it was stored."""

    name: str  # "caption" or "speech"
    features: Mapping[str, Any]  # {"size": 80}, or {"rate": 8000, "bins": 40}

    @classmethod
    def named(cls, name: str, features: Mapping[str, Any] | None = None) -> Task:
        """Return a task with the given features, or `FEATURES`.

        Raises:
            InvalidInput: there is no such task, or a feature is unknown or out of range.
        """
        ensure_choice("task", name, tuple(SOURCES))
        source = SOURCES[name]
        if features is not None and not isinstance(features, Mapping):
            raise InvalidInput(f"features must be a dictionary, not {brief(features)}")
        known = FEATURES[source]
        for feature, value in (features or {}).items():
            if feature == NETWORK and source == "picture":
                ensure_choice(NETWORK, value, NETWORKS)
                continue
            if feature not in known:
                rule = f"it has {', '.join(known)}"
                raise InvalidInput(f"a {source} has no feature {brief(feature)}; {rule}")
            ensure_integer(feature, value, 1, MAX_FEATURE)
        return cls(name, known | dict(features or {}))

    @classmethod
    def of(cls, about: Mapping[str, Any]) -> Task | None:
        """Return the task of a store, from its store.json; None for texts.

        Raises:
            InvalidInput: there is no such task.
        """
        if "task" not in about:
            return None
        return cls.named(about["task"], about.get("features"))

    @property
    def source(self) -> str:
        """The source that its models read."""
        return SOURCES[self.name]

    @property
    def network(self) -> str | None:
        """The frozen network whose features of pictures are stored, if any."""
        return self.features.get(NETWORK)

    @property
    def files(self) -> list[str]:
        """The files of a split's source."""
        return FILES["cells" if self.network else self.source]

    def model_options(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options of a model, completed by the source and its features.

        Raises:
            InvalidInput: the options ask for other features than the data has.
        """
        chosen = options.get("source_options") or {}
        if not isinstance(chosen, Mapping):
            raise InvalidInput(f"source_options must be a dictionary, not {brief(chosen)}")
        for name, value in self.features.items():
            if name in chosen and chosen[name] != value:
                raise InvalidInput(
                    f"the data has {name} {value}, and the model cannot have {brief(chosen[name])}"
                )
        merged = dict(chosen) | dict(self.features)
        return dict(options) | {"source": self.source, "source_options": merged}

    def read(self, content: bytes, name: str) -> Tensor:
        """Return the picture or the features of the sound in a file.

        Raises:
            InvalidInput: the file is no picture or sound.
        """
        if self.source == "picture":
            return read_picture(content, self.features["size"], name)
        rate = self.features["rate"]
        samples = read_wav(io.BytesIO(content), name, rate)
        return log_mel(samples, rate, self.features["bins"])

    def open(self, folder: Path, pairs: int) -> Source:
        """Memory-map the source of a split of `pairs` pairs.

        Raises:
            StorageError: a file cannot be read, or does not fit.
        """
        if self.network:
            return Pictures.open(folder, pairs, "cells", "float16", (CELLS, CHANNELS))
        if self.source == "picture":
            size = self.features["size"]
            return Pictures.open(folder, pairs, "pixels", "uint8", (3, size, size))
        return Sounds.open(folder, pairs, self.features["bins"])
