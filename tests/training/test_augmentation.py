"""Augmentation: what it changes, what it keeps, and that its key decides."""

from __future__ import annotations

import math

import torch

from npad.training.batches import Batch
from npad.training.randomness import (
    BRIGHTNESS,
    CONTRAST,
    MASKS,
    SHIFT,
    SMALLEST_CROP,
    TEMPO,
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


def test_a_crop_moves_within_the_picture():
    left = change_pictures(gradient(), picture_numbers(size=0.0, across=0.0))
    right = change_pictures(gradient(), picture_numbers(size=0.0, across=1.0))
    assert left.max() < gradient().max() - 15
    assert right.min() > gradient().min() + 15
    width = (left.max() - left.min()) / (gradient().max() - gradient().min())
    assert abs(width - SMALLEST_CROP) < 0.03


def test_brightness_and_contrast_stay_in_range():
    brighter = change_pictures(gradient(), picture_numbers(bright=1.0))
    torch.testing.assert_close(brighter, gradient() + BRIGHTNESS)
    harder = change_pictures(gradient(), picture_numbers(contrast=1.0))
    assert abs(harder.std() / gradient().std() - 1 - CONTRAST) < 1e-3
    white = torch.full((1, 3, 8, 8), 255, dtype=torch.uint8)
    assert change_pictures(white, picture_numbers(bright=1.0)).max() == 255


def sound_numbers(tempo=HALF, shift=0.0, stretch=HALF, starts=0.0, sizes=0.0):
    masks = [starts] * 2 * MASKS + [sizes] * 2 * MASKS
    return torch.tensor([[tempo, shift, stretch, *masks]])


def ramp(frames=100, bins=20):
    return torch.arange(1.0, frames + 1)[:, None].expand(frames, bins)[None].contiguous()


def test_the_middle_of_all_numbers_keeps_a_sound():
    found, lengths = change_sounds(ramp(), torch.tensor([100]), sound_numbers())
    assert lengths.tolist() == [100]
    torch.testing.assert_close(found[:, :100], ramp())
    assert not found[:, 100:].any()


def test_tempo_changes_the_length_and_loses_nothing():
    for number, factor in ((0.0, 1 - TEMPO), (1.0, 1 + TEMPO)):
        found, lengths = change_sounds(ramp(), torch.tensor([100]), sound_numbers(tempo=number))
        assert abs(lengths.item() - 100 / factor) <= 1
        inside = found[0, : lengths.item() - 2, 0]
        assert inside.max() > 97
        steps = inside.diff()[1:-1]
        torch.testing.assert_close(steps, torch.full_like(steps, factor), atol=1e-4, rtol=0)
        assert not found[:, lengths.item() :].any()


def test_a_shift_prepends_silence():
    found, lengths = change_sounds(ramp(), torch.tensor([100]), sound_numbers(shift=0.99))
    assert lengths.tolist() == [100 + SHIFT]
    assert found[:, :SHIFT].abs().max() < 1e-5
    torch.testing.assert_close(found[:, SHIFT : SHIFT + 100], ramp())


def test_frequencies_are_stretched():
    frames = torch.arange(20.0).expand(1, 50, 20).contiguous()
    found, _ = change_sounds(frames, torch.tensor([50]), sound_numbers(stretch=0.0))
    torch.testing.assert_close(found[0, 10, :18], 0.9 * torch.arange(18.0))


def test_masks_hide_a_little_of_time_and_frequency():
    ones = torch.ones(1, 100, 20)
    found, _ = change_sounds(ones, torch.tensor([100]), sound_numbers(starts=0.25, sizes=0.99))
    hidden_frames = (found[0, :100] == 0).all(1).nonzero()[:, 0].tolist()
    hidden_bands = (found[0, :100] == 0).all(0).nonzero()[:, 0].tolist()
    assert hidden_frames == list(range(25, 37))
    assert hidden_bands == [5, 6, 7]


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


def test_texts_stay_as_they_are():
    tokens = batch(torch.tensor([[3, 4, 0]]), [0], torch.tensor([3]))
    assert augmented(tokens, "text", 0, 1) is tokens
    features = batch(torch.rand(1, 5, 7), [0])  # of a frozen network
    assert augmented(features, "picture", 0, 1) is features
