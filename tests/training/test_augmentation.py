"""Augmentation: what it changes, what it keeps, and that its key decides."""

from __future__ import annotations

import math

import torch

from npad.training.batches import Batch
from npad.training.randomness import (
    augmented,
    change_pictures,
    change_sounds,
)

HALF = 0.5


def picture_numbers(size=1.0, across=HALF, down=HALF, mirrored=0.9, bright=HALF, contrast=HALF):
    return torch.tensor([[size, across, down, mirrored, bright, contrast]])


def gradient(size=16):
    """Pixels that grow from left to right."""
    row = torch.linspace(60, 180, size)
    return row.expand(1, 3, size, size).contiguous()


def batch(source, ids, lengths=None):
    ids = torch.tensor(ids)
    empty = torch.zeros(len(ids), 1, dtype=torch.long)
    return Batch(ids, source, lengths, empty, empty[:0, 0], empty[:0, 0])


def test_the_middle_of_all_numbers_changes_nothing_and_a_low_one_mirrors():
    torch.testing.assert_close(change_pictures(gradient(), picture_numbers()), gradient())
    mirrored = change_pictures(gradient(), picture_numbers(mirrored=0.1))
    torch.testing.assert_close(mirrored, gradient().flip(3))


def test_pixels_stay_in_range():
    white = torch.full((1, 3, 8, 8), 255, dtype=torch.uint8)
    assert change_pictures(white, picture_numbers(bright=1.0)).max() == 255


def ramp(frames=100, bins=20):
    return torch.arange(1.0, frames + 1)[:, None].expand(frames, bins)[None].contiguous()


def test_the_middle_of_all_numbers_keeps_a_sound():
    found, lengths = change_sounds(
        ramp(), torch.tensor([100]), torch.tensor([[HALF, 0.0, HALF, *[0.0] * 8]])
    )
    assert lengths.tolist() == [100]
    torch.testing.assert_close(found[:, :100], ramp())
    assert not found[:, 100:].any()


def test_pixels_come_from_where_the_numbers_say():
    """A picture that grows evenly in both directions is resampled exactly."""
    numbers = torch.tensor([[0.2, 0.3, 0.6, 0.2, 0.9, 0.1], [0.5, 0.7, 0.35, 0.8, 0.3, 0.8]])
    size, place = 24, torch.arange(24.0)
    pixels = (50 + 2 * place + 3 * place[:, None]).expand(2, 3, size, size)
    found = change_pictures(pixels, numbers)
    for picture, (small, across, down, mirrored, bright, contrast) in zip(
        found, numbers.tolist(), strict=True
    ):
        scale = 1 - 0.3 * (1 - small)
        centred = 2 * (place + 0.5) / size - 1
        column = -centred if mirrored < 0.5 else centred
        columns, rows = (
            ((scale * axis + (1 - scale) * (2 * shift - 1) + 1) * size - 1) / 2
            for axis, shift in ((column, across), (centred, down))
        )
        moved = 50 + 2 * columns + 3 * rows[:, None]
        expected = (moved - moved.mean()) * (0.7 + 0.6 * contrast) + moved.mean()
        expected += 25 * (2 * bright - 1)
        torch.testing.assert_close(picture, expected.expand(3, -1, -1), atol=1e-3, rtol=0)


def test_frames_come_from_where_the_numbers_say():
    """A sound that grows evenly in time and frequency, of two tempi, shifts and stretches."""
    bins, lengths = 20, torch.tensor([109, 80])
    numbers = torch.tensor(
        [
            [0.9, 0.7, 0.3, *[0.2, 0.6, 0.1, 0.7], *[0.9, 0.5, 0.8, 0.4]],
            [0.1, 0.3, 0.8, *[0.5, 0.1, 0.3, 0.85], *[0.3, 0.8, 0.9, 0.6]],
        ]
    )
    time, band = torch.arange(128.0), torch.arange(float(bins))
    sound = 1 + 3 * time[:109, None] + 2 * band
    found, changed = change_sounds(sound.expand(2, 109, bins), lengths, numbers)
    assert found.shape == (2, 128, bins)
    for frames, length, new, row in zip(found, lengths, changed.tolist(), numbers, strict=True):
        tempo, shift, stretch = 0.88 + 0.24 * row[0], (5 * row[1]).floor(), 0.9 + 0.2 * row[2]
        assert new == math.ceil(length / tempo + shift)
        at, bands = (time - shift) * tempo, band * stretch
        expected = 1 + 3 * at[:, None] + 2 * bands
        hidden = time >= new
        for start, size in zip(row[3:5] * new, row[7:9] * 12, strict=True):
            hidden |= (time >= start) & (time < start + size)
        quiet = torch.zeros(bins, dtype=torch.bool)
        for start, size in zip(row[5:7] * bins, row[9:11] * 0.15 * bins, strict=True):
            quiet |= (band >= start) & (band < start + size)
        zero = hidden[:, None] | quiet
        assert not frames[zero].any()
        inside = ~zero & ((at >= 0) & (at <= 108))[:, None] & (bands <= bins - 1)
        assert inside.sum() > 900
        torch.testing.assert_close(frames[inside], expected[inside], atol=1e-3, rtol=0)


def test_the_key_decides_whatever_the_batch():
    torch.manual_seed(0)
    pictures = torch.randint(0, 256, (3, 3, 8, 8), dtype=torch.uint8)
    whole = augmented(batch(pictures, [4, 7, 9]), "picture", 1, 5).source
    part = augmented(batch(pictures[1:2], [7]), "picture", 1, 5).source
    torch.testing.assert_close(part, whole[1:2])
    for other in (
        augmented(batch(pictures, [4, 7, 9]), "picture", 2, 5),
        augmented(batch(pictures, [4, 7, 9]), "picture", 1, 6),
        augmented(batch(pictures, [4, 8, 9]), "picture", 1, 5),
    ):
        assert (other.source[1] - whole[1]).abs().max() > 1
    frames, lengths = torch.randn(2, 64, 10), torch.tensor([64, 40])
    both = augmented(batch(frames, [4, 7], lengths), "sound", 1, 5)
    second = augmented(batch(frames[1:], [7], lengths[1:]), "sound", 1, 5)
    torch.testing.assert_close(second.source, both.source[1:])
    assert second.lengths.tolist() == both.lengths[1:].tolist()
    assert (both.source[:, :40] - frames[:, :40]).abs().max() > 1


def test_texts_stay_as_they_are():
    tokens = batch(torch.tensor([[3, 4, 0]]), [0], torch.tensor([3]))
    assert augmented(tokens, "text", 0, 1) is tokens
    features = batch(torch.rand(1, 5, 7), [0])  # of a frozen network
    assert augmented(features, "picture", 0, 1) is features
