"""Audio: read WAV files, resample them, and split long recordings at pauses."""

from __future__ import annotations

import math
import os
import wave
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
import torch
from torch import Tensor

from npad.errors import InvalidInput
from npad.validation import ensure_integer, ensure_number

SAMPLE_TYPES = {1: "u1", 2: "<i2", 4: "<i4"}  # NumPy type of a sample, by its bytes
SEARCHED_SHARE = 1 / 6  # of a piece, at its end, in which the pause to cut at is searched
PAUSE_SECONDS = 0.1  # length of the window whose loudness is measured
SILENCE = 1e-3  # root mean square, 60 dB below full scale; speech is 20 to 50 dB below it
UNKNOWN_BYTES = 0x7FFF0000  # programs that write to a pipe announce this much or more


class Length(NamedTuple):
    """The length of a WAV file in seconds."""

    announced: float  # by its header; infinite if its writer did not know
    present: float  # what the file can hold, if it ends early


def length(path: str | Path) -> Length:
    """Return the length of a WAV file from its header.

    Raises:
        InvalidInput: the file cannot be read, or is not such a WAV file.
    """
    try:
        with open(path, "rb") as file, _wav_errors(str(path)), wave.open(file, "rb") as content:
            frame_bytes = content.getnchannels() * content.getsampwidth()
            frames, rate = content.getnframes(), max(1, content.getframerate())
            present = min(frames, (os.fstat(file.fileno()).st_size - file.tell()) // frame_bytes)
            _ensure_integers(str(path), content.getsampwidth(), present * frame_bytes)
    except FileNotFoundError as error:
        raise InvalidInput(f"there is no file {path}") from error
    except OSError as error:
        raise InvalidInput(f"cannot read {path}: {error.strerror}") from error
    known = frames * frame_bytes < UNKNOWN_BYTES
    return Length(frames / rate if known else math.inf, present / rate)


def read(path: str | Path, rate: int) -> Tensor:
    """Read a WAV file.

    Args:
        path: a file of integer samples (PCM) of 8, 16, 24 or 32 bits.
        rate: samples a second of the result.

    Returns:
        [samples], in [−1, 1], the channels averaged.

    Raises:
        InvalidInput: the file does not exist, or is not such a WAV file.
    """
    try:
        with open(path, "rb") as file:
            return read_wav(file, str(path), rate)
    except FileNotFoundError as error:
        raise InvalidInput(f"there is no file {path}") from error
    except OSError as error:
        raise InvalidInput(f"cannot read {path}: {error.strerror}") from error


def read_wav(file: BinaryIO, name: str, rate: int, max_seconds: float = math.inf) -> Tensor:
    """Read the content of a WAV file, as `read` does.

    Args:
        file: the content.
        name: what error messages call it.
        rate: samples a second of the result.
        max_seconds: the length that is refused above; samples of a low rate grow in resampling.
    """
    with _wav_errors(name), wave.open(file, "rb") as content:
        channels, size = content.getnchannels(), content.getsampwidth()
        file_rate, frames = content.getframerate(), content.getnframes()
        if file_rate > 0 and frames > max_seconds * file_rate:
            seconds = f"{frames / file_rate:,.0f} seconds"
            raise InvalidInput(f"{name} has {seconds}; at most {max_seconds:g} are allowed")
        samples_read = content.readframes(frames)
    _ensure_integers(name, size, len(samples_read))
    return resample(_mono(samples_read, size, channels), file_rate, rate)


def _ensure_integers(name: str, size: int, count: int) -> None:
    """Require `count` > 0 bytes of samples, of a size that can be read."""
    if size not in (*SAMPLE_TYPES, 3) or not count:
        raise InvalidInput(
            f"{name} has {count} bytes of samples, {8 * size} bits each; "
            "it must have at least one, of 8, 16, 24 or 32 bits"
        )


@contextmanager
def _wav_errors(name: str) -> Iterator[None]:
    try:
        yield
    except (wave.Error, EOFError) as error:
        reason = str(error) or "it ends early"
        raise InvalidInput(f"{name} is no WAV file of integer samples (PCM): {reason}") from error


def _mono(content: bytes, size: int, channels: int) -> Tensor:
    """Return samples of `size` bytes as numbers in [−1, 1], the channels averaged."""
    if size == 3:  # NumPy has no such type: store them in the upper three bytes of four
        padded = np.zeros((len(content) // 3, 4), np.uint8)
        padded[:, 1:] = np.frombuffer(content, np.uint8)[: len(padded) * 3].reshape(-1, 3)
        content, size = padded.tobytes(), 4
    whole_frames = len(content) // (size * channels) * size * channels
    integers = np.frombuffer(content[:whole_frames], SAMPLE_TYPES[size])
    samples = torch.from_numpy(integers.astype(np.float32))
    samples = samples - 128 if size == 1 else samples  # 8-bit samples are unsigned
    return samples.view(-1, channels).mean(1) / 2.0 ** (8 * size - 1)


def resample(samples: Tensor, rate: int, new_rate: int) -> Tensor:
    """Resample by the spectrum; frequencies that `new_rate` cannot hold are removed.

    Args:
        samples: [samples].
        rate: their samples a second.
        new_rate: samples a second of the result.
    """
    ensure_integer("rate", rate, 1)
    if rate == new_rate or not len(samples):
        return samples
    size = max(1, round(len(samples) * new_rate / rate))
    spectrum = torch.fft.rfft(samples.double())
    resampled: Tensor = torch.fft.irfft(spectrum, n=size) * (size / len(samples))
    return resampled.float()


def split_at_pauses(samples: Tensor, rate: int, longest: float) -> list[Tensor]:
    """Split a recording into pieces, each cut at the quietest point near its end.

    Args:
        samples: [samples].
        rate: samples a second.
        longest: seconds of a piece, at most.
    """
    ensure_number("longest", longest, above=0)
    max_samples = max(1, int(longest * rate))
    searched = max(1, int(SEARCHED_SHARE * max_samples))
    pause = min(searched, max(1, int(PAUSE_SECONDS * rate)))
    pieces = []
    while len(samples) > max_samples:
        energy = running_energy(samples[max_samples - searched : max_samples], pause)
        cut = max(1, max_samples - searched + int(energy.argmin()) + pause // 2)
        pieces.append(samples[:cut])
        samples = samples[cut:]
    return [*pieces, samples]


def running_energy(samples: Tensor, width: int) -> Tensor:
    """Return the mean square of each `width` consecutive samples, [samples − width + 1]."""
    total = torch.nn.functional.pad(samples.double().square().cumsum(0), (1, 0))
    return (total[width:] - total[:-width]).clamp(min=0) / width


def is_silent(samples: Tensor, rate: int) -> bool:
    """Return whether the loudest tenth of a second is too quiet to be speech."""
    width = min(len(samples), max(1, int(PAUSE_SECONDS * rate)))
    return bool(running_energy(samples, width).max() < SILENCE**2)
