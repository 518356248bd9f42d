"""What an update changes at random: noise in the model's states, pictures and sounds themselves.

Both are drawn by key (seed, update, pair), so that a resumed run sees the same changes.

- Noise, the paper's first open question: train with the noise of decoding.
- Pictures: a crop of at least 70 % of the width, moved and often mirrored; brightness, contrast.
- Sounds: tempo, a shift in time, a stretch in frequency as of another speaker (Jaitly & Hinton,
  2013), and bands of time and frequency set to zero, their mean (SpecAugment, Park et al., 2019).
  Loudness is not among them: the features do not depend on it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from npad.noise.noisy import Noise, Perturbation
from npad.noise.random import Keys, draw, uniform
from npad.training.batches import Batch

SMALLEST_CROP = 0.7  # of the width
BRIGHTNESS = 25.0  # levels, up or down
CONTRAST = 0.3  # 0.7 to 1.3
TEMPO = 0.12  # 0.88 to 1.12
STRETCH = 0.1  # of frequencies
SHIFT = 4  # frames, at most; the convolutions join as many
MASKS = 2  # of time, and as many of frequency
TIME_MASK = 12  # frames
FREQUENCY_MASK = 0.15  # of the bands
WIDTH_STEP = 128  # frames to which the width of a batch is rounded up, so that few shapes occur


@dataclass(frozen=True)
class TrainingNoise:
    """The noise of a batch at each step, keyed as in decoding, with the update as the chain."""

    noise: Noise
    seed: int
    ids: Tensor  # [rows], the pairs' positions in the corpus
    updates: Tensor  # [rows], the number of the update

    def __call__(self, step: int) -> Perturbation:
        """Return the perturbation of a step, counted from 1."""
        steps = torch.full_like(self.ids, step)
        keys = Keys(self.seed, self.ids, self.updates, steps, torch.zeros_like(steps))
        sigma = torch.full_like(steps, float(self.noise.sigma), dtype=torch.float32)  # type: ignore[arg-type]
        scale = self.noise.schedule(steps.to(torch.float32), torch.ones_like(sigma))
        return Perturbation(self.noise, keys, sigma * scale)


def augmented(batch: Batch, source: str, seed: int, update: int) -> Batch:
    """Return a batch whose pictures or sounds are changed, by key (seed, update, pair).

    Args:
        batch: on any device.
        source: "picture" or "sound"; texts, and features of a frozen network, stay as they are.
        seed: of the recipe.
        update: the number of the update.
    """
    if source == "text" or (source == "picture" and batch.source.dim() == 3):
        return batch
    ids = batch.ids.cpu()
    zeros = torch.zeros_like(ids)
    keys = Keys(seed, ids, torch.full_like(ids, update), zeros, zeros, "augmentation")
    if source == "picture":
        numbers = draw(keys.streams(), 6, uniform)
        return replace(batch, source=change_pictures(batch.source, numbers))
    assert batch.lengths is not None
    numbers = draw(keys.streams(), 3 + 4 * MASKS, uniform)
    frames, lengths = change_sounds(batch.source, batch.lengths, numbers)
    return replace(batch, source=frames, lengths=lengths)


def change_pictures(pixels: Tensor, numbers: Tensor) -> Tensor:
    """Crop, mirror, brighten pictures.

    Args:
        pixels: [pictures, 3, height, width], 0 to 255.
        numbers: [pictures, 6], uniform in (0, 1), on the CPU.

    Returns:
        Pixels of the same shape in float32.
    """
    size, across, down, mirrored, bright, contrast = numbers.to(pixels.device).unbind(1)
    scale = SMALLEST_CROP + (1 - SMALLEST_CROP) * size
    transform = torch.zeros(len(pixels), 2, 3, device=pixels.device)
    transform[:, 0, 0] = torch.where(mirrored < 0.5, -scale, scale)
    transform[:, 1, 1] = scale
    transform[:, 0, 2] = (1 - scale) * (2 * across - 1)
    transform[:, 1, 2] = (1 - scale) * (2 * down - 1)
    grid = F.affine_grid(transform, list(pixels.shape), align_corners=False)
    moved = F.grid_sample(pixels.float(), grid, padding_mode="reflection", align_corners=False)
    mean = moved.mean((1, 2, 3), keepdim=True)
    factor = 1 + CONTRAST * (2 * contrast - 1)
    level = BRIGHTNESS * (2 * bright - 1)
    changed = (moved - mean) * factor[:, None, None, None] + mean + level[:, None, None, None]
    return changed.clamp(0, 255)


def change_sounds(frames: Tensor, lengths: Tensor, numbers: Tensor) -> tuple[Tensor, Tensor]:
    """Change tempo, position and bands of sounds, and mask some.

    Args:
        frames: [sounds, width, bins], zero at padding.
        lengths: [sounds] on the CPU.
        numbers: [sounds, 3 + 4 · MASKS], uniform in (0, 1), on the CPU.

    Returns:
        Frames [sounds, other width, bins], zero at padding, and their lengths on the CPU.
    """
    _, width, bins = frames.shape
    tempo = 1 + TEMPO * (2 * numbers[:, 0] - 1)
    shift = (numbers[:, 1] * (SHIFT + 1)).floor()
    stretch = 1 + STRETCH * (2 * numbers[:, 2] - 1)
    new_lengths = (lengths / tempo + shift).ceil().long()
    longest = int(width / (1 - TEMPO)) + SHIFT + 1
    new_width = -(-longest // WIDTH_STEP) * WIDTH_STEP
    device = frames.device
    time, band = torch.arange(new_width, device=device), torch.arange(bins, device=device)
    at_time = (time - shift.to(device)[:, None]) * tempo.to(device)[:, None]  # [sounds, new width]
    at_band = band * stretch.to(device)[:, None]  # [sounds, bins]
    grid = torch.stack(
        [
            ((2 * at_band + 1) / bins - 1)[:, None].expand(-1, new_width, -1),
            ((2 * at_time + 1) / width - 1)[:, :, None].expand(-1, -1, bins),
        ],
        -1,
    )
    moved = F.grid_sample(frames[:, None], grid, align_corners=False)[:, 0]
    starts, sizes = numbers[:, 3:].to(device).view(len(frames), 2, 2 * MASKS).unbind(1)
    ends = new_lengths.to(device)
    hidden = time >= ends[:, None]
    hidden |= _masked(time, starts[:, :MASKS] * ends[:, None], sizes[:, :MASKS] * TIME_MASK)
    quiet = _masked(band, starts[:, MASKS:] * bins, sizes[:, MASKS:] * FREQUENCY_MASK * bins)
    return moved.masked_fill(hidden[:, :, None] | quiet[:, None], 0), new_lengths


def _masked(position: Tensor, starts: Tensor, sizes: Tensor) -> Tensor:
    """Return [sounds, positions]: true in one of the intervals [sounds, masks]."""
    inside = (position >= starts[..., None]) & (position < (starts + sizes)[..., None])
    return inside.any(1)
