"""Strings of spoken digits with noise, from the Free Spoken Digit Dataset (fsdd.tar.xz)."""

from __future__ import annotations

import io
import re
import tarfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from npad.errors import InvalidInput
from npad.pipelines.sound import read_wav
from npad.text.english import DIGITS

TEST_TAKES = range(5)  # of each speaker and digit, as the corpus' authors propose
VALIDATION_TAKES = range(5, 10)
TRAINING_TAKES = range(10, 50)
RATE = 8000  # of the corpus, in samples per second
VALIDATION_SEED, TEST_SEED, NOISE_SEED = 1, 2, 3  # of the strings of all experiments
SHORTEST, LONGEST = 3, 8  # digits of a string
PAUSES = (0.05, 0.25)  # seconds between two digits
MARGIN = 0.3  # seconds before the first and after the last
PEAK = 0.5  # of every digit, since recordings differ in loudness
CLEAN_SHARE = 0.4  # of the strings to train on; the others have noise
TRAINING_DECIBELS = (-2.0, 30.0)  # signal-to-noise ratios of those, drawn uniformly

Takes = Mapping[str, Mapping[int, Sequence[Tensor]]]  # speaker, digit: recordings


class Utterance(NamedTuple):
    """A string of digits by one speaker."""

    text: str
    speaker: str
    samples: Tensor  # [samples], without noise


def read_takes(archive: Path, takes: range, rate: int) -> Takes:
    """Read some takes of every speaker and digit from fsdd.tar.xz.

    Raises:
        InvalidInput: the archive cannot be read, or has no such recordings.
    """
    found: dict[str, dict[int, list[Tensor]]] = defaultdict(lambda: defaultdict(list))
    try:
        with tarfile.open(archive) as content:
            for member in sorted(content.getmembers(), key=lambda member: member.name):
                match = re.search(r"(\d)_(\w+)_(\d+)\.wav$", member.name)
                file = content.extractfile(member) if match else None
                if match and file is not None and int(match[3]) in takes:
                    sound = read_wav(io.BytesIO(file.read()), member.name, rate)
                    found[match[2]][int(match[1])].append(PEAK * sound / sound.abs().max())
    except (OSError, tarfile.TarError, EOFError) as error:
        raise InvalidInput(f"cannot read {archive}: {error}; it must be fsdd.tar.xz") from error
    complete = {name: digits for name, digits in found.items() if len(digits) == len(DIGITS)}
    if not complete:
        raise InvalidInput(f"{archive} has no speaker with recordings of all ten digits")
    return complete


def utterances(
    takes: Takes, count: int, rate: int, seed: int = 0, shortest: int = SHORTEST
) -> list[Utterance]:
    """Return `count` random strings of `shortest` to 8 digits, each by one speaker."""
    random = np.random.default_rng(seed)
    speakers = sorted(takes)
    strings = []
    for _ in range(count):
        speaker = speakers[int(random.integers(len(speakers)))]
        digits = random.integers(10, size=random.integers(shortest, LONGEST + 1)).tolist()
        parts = [torch.zeros(int(MARGIN * rate))]
        for digit in digits:
            recordings = takes[speaker][digit]
            parts.append(recordings[int(random.integers(len(recordings)))])
            parts.append(torch.zeros(int(random.uniform(*PAUSES) * rate)))
        samples = torch.cat([*parts, torch.zeros(int(MARGIN * rate))])
        strings.append(Utterance(" ".join(DIGITS[digit] for digit in digits), speaker, samples))
    return strings


def with_noise(samples: Tensor, decibels: float, seed: int) -> Tensor:
    """Add white noise at a signal-to-noise ratio: mean power of the samples over the noise's."""
    noise = np.random.default_rng(seed).standard_normal(len(samples))
    power = samples.double().square().mean() / 10 ** (decibels / 10)
    return (samples.double() + torch.from_numpy(noise) * power.sqrt()).float()


def at_levels(
    strings: Sequence[Utterance], levels: Sequence[float | None]
) -> list[tuple[Tensor, str]]:
    """Return the samples and the text of all strings at each level of noise, None without noise."""
    return [
        (
            utterance.samples
            if decibels is None
            else with_noise(utterance.samples, decibels, NOISE_SEED + 1000 * i),
            utterance.text,
        )
        for decibels in levels
        for i, utterance in enumerate(strings)
    ]


def archive_in(data: Path) -> Path:
    """Return the path of fsdd.tar.xz in a folder or in its subfolder fsdd."""
    archive = data / "fsdd.tar.xz"
    return archive if archive.exists() else data / "fsdd" / "fsdd.tar.xz"


def training_strings(
    takes: Takes, count: int, rate: int, seed: int = 0, shortest: int = SHORTEST
) -> Iterator[Utterance]:
    """Yield random strings to train on: a share of them clean, the others with some noise."""
    random = np.random.default_rng([seed, 1])
    for i, utterance in enumerate(utterances(takes, count, rate, seed, shortest)):
        clean, decibels = random.random() < CLEAN_SHARE, random.uniform(*TRAINING_DECIBELS)
        if clean:
            yield utterance
        else:
            noisy = with_noise(utterance.samples, decibels, seed=1_000_003 * (seed + 1) + i)
            yield utterance._replace(samples=noisy)
