"""Sound: read recordings, resample and split them at pauses, and compute log-mel features."""

from __future__ import annotations

import math
import os
import struct
import wave
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from npad.errors import InvalidInput, StorageError
from npad.pipelines.ffmpeg import as_wav, ensure_installed
from npad.storage.regular import Bounded, open_regular
from npad.validation import brief, ensure_integer

SAMPLE_TYPES = {1: "u1", 2: "<i2", 4: "<i4"}  # NumPy type of a sample, by its bytes
SEARCHED_SHARE = 1 / 6  # of a piece, at its end, in which the pause to cut at is searched
PAUSE_SECONDS = 0.1  # length of the window whose loudness is measured
SILENCE = 1e-3  # root mean square, 60 dB below full scale; speech is 20 to 50 dB below it
MAX_BYTES = 1 << 32  # of a WAV file: its header can say no more
MAX_SECONDS = 6 * 3600.0  # of a recording; its samples take 1.4 GB at 16,000 per second
MIN_RATE, MAX_RATE = 1000, 1_000_000  # samples per second; telephones have 8,000
HEADER_SECONDS = 10.0  # for the parts of a file, of which a hostile one has millions
UNKNOWN_BYTES = 0x7FFF0000  # programs that write to a pipe announce this much or more
FRAME_SECONDS = 0.01  # between two frames
WINDOW_SECONDS = 0.025  # that a frame looks at
LOWEST_HERTZ = 20.0  # of the first band
RANGE = 1e-6  # energy, of the loudest band; what is 60 dB below it is silence
FLOOR = 1e-10  # energy, of a recording that is all silence
FLATTEST = 1e-3  # deviation below which a recording is silence, and stays all zeros
BLOCK_FRAMES = 10_000  # transformed at a time, so that an hour of sound needs little memory


class Length(NamedTuple):
    """The length of a recording in seconds; infinite if only reading it all would tell."""

    announced: float  # by its header; infinite if its writer did not know
    present: float  # what the file can hold, if it ends early


def length(path: str | Path) -> Length:
    """Return the length of a WAV file from its header; that of other recordings is not known.

    Raises:
        InvalidInput: the file cannot be read, or is not such a WAV file and ffmpeg is missing.
    """
    with _opened(path) as file:
        if not _is_wav(file):
            ensure_installed(str(path))
            return Length(math.inf, math.inf)
        return _wav_length(file, str(path))


def _wav_length(file: BinaryIO, name: str) -> Length:
    with _wav(file, name) as content:
        announced, present = content.getnframes(), _present_frames(file, content)
        rate = content.getframerate()
        known = announced * _frame_bytes(content) < UNKNOWN_BYTES
    return Length(announced / rate if known else math.inf, present / rate)


def read(path: str | Path, rate: int, max_seconds: float = MAX_SECONDS) -> Tensor:
    """Read a recording: WAV files as they are, and others if ffmpeg is installed.

    Args:
        path: a WAV file of integer samples (PCM) of 8, 16, 24 or 32 bits, or what ffmpeg reads.
        rate: samples per second of the result.
        max_seconds: the longest recording accepted.

    Returns:
        [samples], in [−1, 1], the channels averaged.

    Raises:
        InvalidInput: the file does not exist, cannot be read, or is too long.
    """
    with _opened(path) as file:
        if _is_wav(file):
            return read_wav(file, str(path), rate, max_seconds)
    with as_wav(path, rate, max_seconds) as converted:
        return read_wav(converted, str(path), rate, max_seconds)


def read_wav(file: BinaryIO, name: str, rate: int, max_seconds: float = MAX_SECONDS) -> Tensor:
    """Read the content of a WAV file, as `read` does.

    Args:
        file: the content; it can seek.
        name: what error messages call it.
        rate: samples per second of the result.
        max_seconds: the longest recording accepted; samples of a low rate grow in resampling.
    """
    with _wav(file, name) as content:
        frames, file_rate = _present_frames(file, content), content.getframerate()
        if frames > max_seconds * file_rate:
            seconds = f"{frames / file_rate:,.0f} seconds"
            raise InvalidInput(f"{name} has {seconds}; at most {max_seconds:g} are allowed: cut it")
        samples_read = content.readframes(frames)
    return resample(
        _mono(samples_read, content.getsampwidth(), content.getnchannels()), file_rate, rate
    )


@contextmanager
def _opened(path: str | Path) -> Iterator[BinaryIO]:
    """Open a regular file to read; a system error is reported in one line."""
    try:
        with open_regular(path, MAX_BYTES) as file:
            yield file
    except StorageError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            raise InvalidInput(f"there is no file {path}") from error
        raise InvalidInput(str(error)) from error


def _is_wav(file: BinaryIO) -> bool:
    """Return whether a file is WAV, of integer samples as far as its start says; or empty."""
    start = file.read(22)
    file.seek(0)
    is_float = start[12:16] == b"fmt " and start[20:22] == b"\3\0"
    return not start or (start[:4] == b"RIFF" and start[8:12] == b"WAVE" and not is_float)


@contextmanager
def _wav(file: BinaryIO, name: str) -> Iterator[wave.Wave_read]:
    """Open the content of a WAV file; a damaged one is reported in one line."""
    bounded: Any = Bounded(file, HEADER_SECONDS)
    try:
        with wave.open(bounded, "rb") as content:
            size, rate = content.getsampwidth(), content.getframerate()
            frames = _present_frames(file, content)
            if size not in (*SAMPLE_TYPES, 3) or not frames:
                rule = "it must have at least one, of 8, 16, 24 or 32 bits"
                raise wave.Error(f"it has {frames:,} samples of {8 * size} bits; {rule}")
            if not MIN_RATE <= rate <= MAX_RATE:
                raise wave.Error(f"{rate:,} samples per second, not {MIN_RATE:,} to {MAX_RATE:,}")
            yield content
    except (wave.Error, EOFError, StorageError, RuntimeError, struct.error) as error:
        reason = str(error) or "it ends early"
        raise InvalidInput(
            f"{name} is not a WAV file of integer samples (PCM): {reason}"
        ) from error


def _frame_bytes(content: wave.Wave_read) -> int:
    return content.getnchannels() * content.getsampwidth()


def _present_frames(file: BinaryIO, content: wave.Wave_read) -> int:
    """Return the frames that are there, of those announced; `file` is where they begin."""
    begin, end = file.tell(), file.seek(0, os.SEEK_END)
    file.seek(begin)
    return min(content.getnframes(), (end - begin) // _frame_bytes(content))


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
