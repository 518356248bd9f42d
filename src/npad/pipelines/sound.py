"""Sound: read WAV files, resample and split them at pauses, and compute log-mel features."""

from __future__ import annotations

import math
import os
import wave
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from npad.errors import InvalidInput
from npad.validation import brief, ensure_integer, ensure_number

SAMPLE_TYPES = {1: "u1", 2: "<i2", 4: "<i4"}  # NumPy type of a sample, by its bytes
SEARCHED_SHARE = 1 / 6  # of a piece, at its end, in which the pause to cut at is searched
PAUSE_SECONDS = 0.1  # length of the window whose loudness is measured
SILENCE = 1e-3  # root mean square, 60 dB below full scale; speech is 20 to 50 dB below it
UNKNOWN_BYTES = 0x7FFF0000  # programs that write to a pipe announce this much or more
FRAME_SECONDS = 0.01  # between two frames
WINDOW_SECONDS = 0.025  # that a frame looks at
LOWEST_HERTZ = 20.0  # of the first band
RANGE = 1e-6  # energy, of the loudest band; what is 60 dB below it is silence
FLOOR = 1e-10  # energy, of a recording that is all silence
FLATTEST = 1e-3  # deviation below which a recording is silence, and stays all zeros
BLOCK_FRAMES = 10_000  # transformed at a time, so that an hour of sound needs little memory


class Length(NamedTuple):
    """The length of a WAV file in seconds."""

    announced: float  # by its header; infinite if its writer did not know
    present: float  # what the file can hold, if it ends early


def length(path: str | Path) -> Length:
    """Return the length of a WAV file from its header.

    Raises:
        InvalidInput: the file cannot be read, or is not such a WAV file.
    """
    with _opened(path) as file, _wav_errors(str(path)), wave.open(file, "rb") as content:
        frame_bytes = content.getnchannels() * content.getsampwidth()
        frames, rate = content.getnframes(), max(1, content.getframerate())
        present = min(frames, (os.fstat(file.fileno()).st_size - file.tell()) // frame_bytes)
        _ensure_integers(str(path), content.getsampwidth(), present * frame_bytes)
    known = frames * frame_bytes < UNKNOWN_BYTES
    return Length(frames / rate if known else math.inf, present / rate)


def read(path: str | Path, rate: int) -> Tensor:
    """Read a WAV file.

    Args:
        path: a file of integer samples (PCM) of 8, 16, 24 or 32 bits.
        rate: samples per second of the result.

    Returns:
        [samples], in [−1, 1], the channels averaged.

    Raises:
        InvalidInput: the file does not exist, or is not such a WAV file.
    """
    with _opened(path) as file:
        return read_wav(file, str(path), rate)


def read_wav(file: BinaryIO, name: str, rate: int, max_seconds: float = math.inf) -> Tensor:
    """Read the content of a WAV file, as `read` does.

    Args:
        file: the content.
        name: what error messages call it.
        rate: samples per second of the result.
        max_seconds: the longest recording accepted; samples of a low rate grow in resampling.
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


@contextmanager
def _opened(path: str | Path) -> Iterator[BinaryIO]:
    """Open a file to read; an error of the system becomes one line."""
    try:
        with open(path, "rb") as file:
            yield file
    except FileNotFoundError as error:
        raise InvalidInput(f"there is no file {path}") from error
    except OSError as error:
        raise InvalidInput(f"cannot read {path}: {error.strerror}") from error


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
        rate: their samples per second.
        new_rate: samples per second of the result.
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
        rate: samples per second.
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
    total = F.pad(samples.double().square().cumsum(0), (1, 0))
    return (total[width:] - total[:-width]).clamp(min=0) / width


def is_silent(samples: Tensor, rate: int) -> bool:
    """Return whether the loudest tenth of a second is too quiet to be speech."""
    width = min(len(samples), max(1, int(PAUSE_SECONDS * rate)))
    return bool(running_energy(samples, width).max() < SILENCE**2)


def log_mel(samples: Tensor, rate: int, bins: int = 40) -> Tensor:
    """Return the log-mel features of a recording, which do not depend on its loudness.

    The mean over the recording and all bands is subtracted, and the rest divided by its standard
    deviation.

    Args:
        samples: [samples], floating-point.
        rate: samples per second.
        bins: mel bands.

    Returns:
        [frames, bins] in float32, one per 10 ms and at least one.

    Raises:
        InvalidInput: an argument is invalid.
    """
    ensure_integer("rate", rate, 100)
    ensure_integer("bins", bins, 1, rate)
    if not isinstance(samples, Tensor) or samples.dim() != 1 or not samples.is_floating_point():
        kind = list(samples.shape) if isinstance(samples, Tensor) else brief(samples)
        raise InvalidInput(f"samples must be a floating-point tensor [samples], not {kind}")
    step, window = max(1, round(FRAME_SECONDS * rate)), max(1, round(WINDOW_SECONDS * rate))
    frames = max(1, -(-len(samples) // step))
    padded = F.pad(samples.float(), (0, (frames - 1) * step + window - len(samples)))
    windows = padded.unfold(0, window, step)  # [frames, window]
    size = 2 ** math.ceil(math.log2(window))
    shape, bands = torch.hann_window(window), _bands(rate, bins, size)
    features = torch.cat(
        [
            torch.fft.rfft(block * shape, size).abs().square() @ bands
            for block in torch.split(windows, BLOCK_FRAMES)
        ]
    )
    centred = features.clamp(min=max(FLOOR, RANGE * float(features.max()))).log()
    centred = centred - centred.mean()
    deviation = centred.square().mean().sqrt()
    return torch.where(deviation < FLATTEST, torch.zeros_like(centred), centred / deviation)


@cache
def _bands(rate: int, bins: int, size: int) -> Tensor:
    """Return triangular bands, equally wide on the mel scale: [frequencies, bins]."""
    highest = rate / 2
    edges = torch.linspace(_mel(LOWEST_HERTZ), _mel(highest), bins + 2, dtype=torch.float64)
    hertz = 700 * (torch.exp(edges / 1127) - 1)
    frequencies = torch.linspace(0, highest, size // 2 + 1, dtype=torch.float64)[:, None]
    rise = (frequencies - hertz[:-2]) / (hertz[1:-1] - hertz[:-2])
    fall = (hertz[2:] - frequencies) / (hertz[2:] - hertz[1:-1])
    return torch.minimum(rise, fall).clamp(min=0).float()


def _mel(hertz: float) -> float:
    return 1127 * math.log1p(hertz / 700)
