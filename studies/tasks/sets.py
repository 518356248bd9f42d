"""The validation and test sets of captions and speech, with the models that decode them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from npad.errors import InvalidInput
from npad.models.cgru.fast import prepared
from npad.models.cgru.model import AttentionModel
from npad.models.encoders.efficientnet import PretrainedEncoder
from npad.pipelines.manifests import read_files, read_manifest
from npad.pipelines.pictures import read_picture
from npad.pipelines.sound import log_mel
from npad.storage import checkpoint
from npad.text.subwords import Detokeniser
from studies.digits import (
    TEST_SEED,
    TEST_TAKES,
    VALIDATION_SEED,
    VALIDATION_TAKES,
    archive_in,
    at_levels,
    read_takes,
    utterances,
)
from studies.tasks.decoded_bench import LiveSet

LEVELS: dict[str, float | None] = {"0 dB": 0, "10 dB": 10, "20 dB": 20, "clean": None}
PICTURES_AT_A_TIME = 64  # through a frozen network, whose first features take 2.5 MB each
OTHER_PICTURES = "test, other pictures"  # the captions of a picture against those of another
BLIND_MODEL = "test, blind model"  # one trained with the pictures of other captions


def caption_sets(
    model: Path, blind: Path | None, data: Path, sizes: tuple[int, int], device: torch.device
) -> dict[str, LiveSet]:
    """Return validation and test pictures of Flickr8k, and the controls on the test pictures.

    Args:
        model: the folder of the model.
        blind: of a model that was trained with the pictures of other captions.
        data: holds images-80px.tar, valid.tsv.xz and test.tsv.xz, or the folder flickr8k of them.
        sizes: most pictures of the validation and of the test set.
        device: of the models.
    """
    folder = data if (data / "test.tsv.xz").exists() else data / "flickr8k"
    loaded, detokenise = _loaded(model, "picture", device)
    ready = prepared(loaded)
    size = loaded.source_encoder.options["size"]
    sets = {}
    for name, count in zip(("valid", "test"), sizes, strict=True):
        texts = dict(list(read_manifest(folder / f"{name}.tsv.xz").items())[:count])
        content = dict(read_files(folder / "images-80px.tar", texts))
        pictures = torch.stack([read_picture(content[file], size, file) for file in texts])
        references = list(texts.values())
        sources = list(pictures.to(device))
        sets[name] = LiveSet(ready, detokenise, sources, references)
    test = sets["test"]
    shifted = [*test.sources[1:], test.sources[0]]
    sets[OTHER_PICTURES] = LiveSet(ready, detokenise, shifted, test.references)
    if blind is not None:
        control, words = _loaded(blind, "picture", device)
        sets[BLIND_MODEL] = LiveSet(prepared(control), words, test.sources, test.references)
    return sets


def speech_sets(
    model: Path, data: Path, sizes: tuple[int, int], device: torch.device
) -> dict[str, LiveSet]:
    """Return strings of digits: for validation at all levels of noise, to test at each.

    Args:
        model: the folder of the model.
        data: holds fsdd.tar.xz, or the folder fsdd of it.
        sizes: strings of the validation and of the test sets.
        device: of the model.
    """
    loaded, detokenise = _loaded(model, "sound", device)
    options, ready = loaded.source_encoder.options, prepared(loaded)
    rate, bins = options["rate"], options["bins"]

    def features(takes: range, count: int, seed: int, levels: Sequence[float | None]) -> LiveSet:
        strings = utterances(read_takes(archive_in(data), takes, rate), count, rate, seed)
        heard: list[tuple[Tensor, str]] = [
            (log_mel(samples, rate, bins), text) for samples, text in at_levels(strings, levels)
        ]
        heard.sort(key=lambda pair: len(pair[0]))
        sources = [sound.to(device) for sound, _ in heard]
        return LiveSet(ready, detokenise, sources, [text for _, text in heard])

    valid = features(VALIDATION_TAKES, sizes[0], VALIDATION_SEED, list(LEVELS.values()))
    tests = {
        name: features(TEST_TAKES, sizes[1], TEST_SEED, [decibels])
        for name, decibels in LEVELS.items()
    }
    return {"valid": valid, **tests}


class Remembered(nn.Module):
    """A frozen network whose features of a picture are computed once.

    All decoders see the same pictures, and on a CPU the network would take most of the time.
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network
        self.features: dict[bytes, Tensor] = {}

    def forward(self, pixels: Tensor, *options: Any) -> Tensor:
        keys = [picture.numpy().tobytes() for picture in pixels]
        missing = [i for i, key in enumerate(keys) if key not in self.features]
        for start in range(0, len(missing), PICTURES_AT_A_TIME):
            part = missing[start : start + PICTURES_AT_A_TIME]
            computed = self.network(pixels[part], *options)
            self.features |= {keys[i]: cells for i, cells in zip(part, computed, strict=True)}
        return torch.stack([self.features[key] for key in keys])


def _loaded(folder: Path, source: str, device: torch.device) -> tuple[AttentionModel, Detokeniser]:
    saved = checkpoint.load(folder, device)
    if saved.model.source != source:
        raise InvalidInput(f"{folder} is a model of a {saved.model.source}, not of a {source}")
    encoder = saved.model.source_encoder
    if isinstance(encoder, PretrainedEncoder) and device.type == "cpu":
        encoder.network = Remembered(encoder.network)  # type: ignore[assignment]
    return saved.model, Detokeniser(saved.subwords[1])
