"""Helpers of the tests of pictures and sounds: folders of untrained models, and files to decode."""

from __future__ import annotations

import wave
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from npad.models.cgru.model import AttentionModel
from npad.storage import checkpoint
from npad.text.subwords import Subwords

WORDS = "a red blue kite dog on the one two three four five six seven eight nine zero"
SIZES = {"units": 8, "embedding": 6, "initialisation": "glorot"}
OPTIONS = {
    "picture": {"size": 16, "channels": [4, 8]},  # a grid of 4 × 4
    "sound": {"rate": 8000, "bins": 10, "channels": 8},
}


def random_model(folder: Path, source: str, seed: int = 0, **changes) -> Path:
    """The folder of a model of pictures or sounds whose weights are random."""
    torch.manual_seed(seed)
    target = Subwords.learn([WORDS] * 4, 290)
    options = SIZES | {"source": source, "source_options": OPTIONS[source]} | changes
    model = AttentionModel(1, target.size, **options).eval()
    with torch.no_grad():
        model.logits.bias[: 1 + 256] -= 6  # bytes are no words
        model.logits.bias[0] += 4
        for parameter in (model.logits.weight, model.target_embedding.weight):
            parameter.normal_()
    checkpoint.save(folder, model, (None, target), {})
    return folder


def draw(path: Path, seed: int, size: int = 16) -> Path:
    """A picture of random pixels."""
    pixels = np.random.default_rng(seed).integers(0, 256, (size, size, 3), np.uint8)
    Image.fromarray(pixels).save(path)
    return path


def tone(hertz: float, seconds: float, rate: int) -> torch.Tensor:
    return 0.5 * torch.sin(2 * torch.pi * hertz * torch.arange(int(seconds * rate)) / rate)


def record(path: Path, samples: torch.Tensor, rate: int, channels: int = 1) -> Path:
    """A WAV file of 16 bits with the same samples in every channel."""
    integers = (samples.clamp(-1, 1) * 32767).round().short()
    with wave.open(str(path), "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(integers[:, None].expand(-1, channels).contiguous().numpy().tobytes())
    return path
