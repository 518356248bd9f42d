"""Sound: WAV files as samples, at the rate a model wants, in pieces that it can hear at once."""

from __future__ import annotations

import wave
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from npad.errors import InvalidInput
from npad.validation import ensure_integer, ensure_number

BYTES = {1: "u1", 2: "<i2", 4: "<i4"}  # a sample, by its size
SEARCH = 1 / 6  # of a piece, at its end, is where a pause is looked for
PAUSE = 0.1  # seconds


def read(path: str | Path, rate: int) -> Tensor:
    """A WAV file as samples in [−1, 1], its channels averaged, at `rate` samples a second."""
    try:
        with wave.open(str(path), "rb") as file:
            channels, size, own = file.getnchannels(), file.getsampwidth(), file.getframerate()
            content = file.readframes(file.getnframes())
    except FileNotFoundError as error:
        raise InvalidInput(f"there is no file {path}") from error
    except (wave.Error, EOFError) as error:
        reason = str(error) or "it ends early"
        raise InvalidInput(f"{path} is no WAV file of whole numbers (PCM): {reason}") from error
    if size not in (*BYTES, 3) or not content:
        what = f"{len(content)} bytes of samples, {8 * size} bits each"
        raise InvalidInput(f"{path} has {what}; it must have some, of 8, 16, 24 or 32 bits")
    if size == 3:  # as the upper three bytes of four
        padded = np.zeros((len(content) // 3, 4), np.uint8)
        padded[:, 1:] = np.frombuffer(content, np.uint8)[: len(padded) * 3].reshape(-1, 3)
        content, size = padded.tobytes(), 4
    whole_frames = len(content) // (size * channels) * size * channels
    samples = torch.from_numpy(
        np.frombuffer(content[:whole_frames], BYTES[size]).astype(np.float32)
    )
    samples = samples - 128 if size == 1 else samples
    return resampled(samples.view(-1, channels).mean(1) / 2.0 ** (8 * size - 1), own, rate)


def resampled(samples: Tensor, rate: int, wanted: int) -> Tensor:
    """The same sound at another rate, by its spectrum: what the slower rate cannot hold is left out."""
    ensure_integer("rate", rate, 1)
    if rate == wanted or not len(samples):
        return samples
    size = max(1, round(len(samples) * wanted / rate))
    spectrum = torch.fft.rfft(samples.double())
    made: Tensor = torch.fft.irfft(spectrum, n=size) * (size / len(samples))
    return made.float()


def pieces(samples: Tensor, rate: int, longest: float) -> list[Tensor]:
    """A recording in pieces of at most `longest` seconds, each cut where it is most quiet near its end."""
    ensure_number("longest", longest, above=0)
    most, found = max(1, int(longest * rate)), []
    last = max(1, int(SEARCH * most))
    pause = min(last, max(1, int(PAUSE * rate)))
    while len(samples) > most:
        loud = samples[most - last : most].square().unfold(0, pause, 1).mean(1)
        cut = max(1, most - last + int(loud.argmin()) + pause // 2)
        found.append(samples[:cut])
        samples = samples[cut:]
    return [*found, samples]
