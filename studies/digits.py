"""Strings of spoken digits with noise, from the Free Spoken Digit Dataset.

python -m studies.digits --data DIR --out FOLDER

writes a corpus to train on: FOLDER/train.tsv and valid.tsv, lines `file<TAB>digits in words`, and
FOLDER/strings.tar with the files, WAV at 8 kHz. DIR holds fsdd.tar.xz or fsdd/fsdd.tar.xz.
"""

from __future__ import annotations

import argparse
import io
import re
import tarfile
import wave
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
RATE = 8000  # of the corpus, in samples a second
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


def write_corpus(folder: Path, archive: Path, train: int, valid: int, seed: int = 0) -> None:
    """Write strings to train and to validate on as manifests and an archive of WAV files.

    No take is in both, and none of the test takes is in either.

    Raises:
        InvalidInput: the archive of the recordings cannot be read.
    """
    splits = {"train": (TRAINING_TAKES, train), "valid": (VALIDATION_TAKES, valid)}
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(folder / "strings.tar", "w") as files:
        for number, (name, (takes, count)) in enumerate(splits.items()):
            recordings = read_takes(archive, takes, RATE)
            lines = []
            strings = training_strings(recordings, count, RATE, 2 * seed + number)
            for i, utterance in enumerate(strings):
                content = wav_bytes(utterance.samples, RATE)
                member = tarfile.TarInfo(f"{name}-{i:06}.wav")
                member.size = len(content)
                files.addfile(member, io.BytesIO(content))
                lines.append(f"{member.name}\t{utterance.text}\n")
            (folder / f"{name}.tsv").write_text("".join(lines))


def wav_bytes(samples: Tensor, rate: int) -> bytes:
    """Return samples as a WAV file of 16 bits; values beyond ±1 are clipped."""
    content = io.BytesIO()
    with wave.open(content, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes((samples.clamp(-1, 1) * 32767).round().short().numpy().tobytes())
    return content.getvalue()


def main(arguments: Sequence[str] | None = None) -> None:
    """Write a corpus of strings to train on."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data", type=Path, required=True, help="folder of fsdd.tar.xz")
    parser.add_argument("--out", type=Path, required=True, help="the folder to write")
    parser.add_argument("--train", type=int, default=20_000, help="strings to train on")
    parser.add_argument("--valid", type=int, default=500, help="strings to validate on")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    write_corpus(options.out, archive_in(options.data), options.train, options.valid, options.seed)


if __name__ == "__main__":
    main()
