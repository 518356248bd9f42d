"""Features of sound: the logarithm of its energy in mel bands, frame by frame."""

from __future__ import annotations

import math
from functools import cache

import torch
from torch import Tensor
from torch.nn import functional as F

from npad.errors import InvalidInput
from npad.validation import brief, ensure_integer

FRAME_SECONDS = 0.01  # between two frames
WINDOW_SECONDS = 0.025  # that a frame looks at
LOWEST_HERTZ = 20.0  # of the first band
RANGE = 1e-6  # energy, of the loudest band; what is 60 dB below it is silence
FLOOR = 1e-10  # energy, of a recording that is all silence
FLATTEST = 1e-3  # deviation below which a recording is silence, and stays all zeros
BLOCK_FRAMES = 10_000  # transformed at a time, so that an hour of sound needs little memory


def log_mel(samples: Tensor, rate: int, bins: int = 40) -> Tensor:
    """Return the log-mel features of a recording, which do not depend on its loudness.

    The mean over the recording and all bands is subtracted, and the rest divided by its standard
    deviation.

    Args:
        samples: [samples], floating-point.
        rate: samples a second.
        bins: mel bands.

    Returns:
        [frames, bins] in float32, a frame per 10 ms and at least one.

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
