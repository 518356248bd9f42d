"""Helpers of the tests of pictures and sounds: folders of untrained models, and files to decode."""

from __future__ import annotations

import io
import tarfile
import wave
from pathlib import Path
from typing import Literal

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


def wav(samples: torch.Tensor, rate: int, size: int = 2, channels: int = 1) -> bytes:
    """A WAV file: whole numbers of `size` bytes, the same in each channel."""
    integers = (round(x * (2 ** (8 * size - 1) - 1)) for x in samples.clamp(-1, 1).tolist())
    if size == 1:
        frames = [bytes([integer + 128]) for integer in integers]
    else:
        frames = [integer.to_bytes(size, "little", signed=True) for integer in integers]
    content = io.BytesIO()
    with wave.open(content, "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(size)
        file.setframerate(rate)
        file.writeframes(b"".join(frame * channels for frame in frames))
    return content.getvalue()


def record(path: Path, samples: torch.Tensor, rate: int, size: int = 2, channels: int = 1) -> Path:
    path.write_bytes(wav(samples, rate, size, channels))
    return path


def write_tar(
    path: Path, files: dict[str, bytes], mode: Literal["w", "w:xz", "w:gz"] = "w"
) -> None:
    with tarfile.open(path, mode) as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
