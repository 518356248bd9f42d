"""Log-mel features: which band a tone is in, and what they do not depend on."""

from __future__ import annotations

import io
import math
import wave

import numpy as np
import pytest
import torch

import media_models
from npad import InvalidInput
from npad.pipelines import sound
from npad.pipelines.sound import log_mel

RATE = 8000


def tone(hertz, seconds=0.5):
    return media_models.tone(hertz, seconds, RATE)


def test_a_higher_tone_is_in_a_higher_band():
    melody = torch.cat([tone(hertz, 0.25) for hertz in (200, 500, 1000, 2000, 3500)])
    bands = log_mel(melody, RATE, 40)[12::25].argmax(1).tolist()
    assert bands == sorted(set(bands))


def test_there_is_a_frame_per_ten_milliseconds():
    assert log_mel(tone(440, 1.0), RATE).shape == (100, 40)
    assert log_mel(tone(440, 0.101), RATE, 20).shape == (11, 20)
    assert log_mel(torch.zeros(0), RATE).shape == (1, 40)
    assert log_mel(torch.randn(44_100), 44_100, 80).shape == (100, 80)


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        (b"", True),
        (b"RIFF\0\0\0\0WAVEfmt \x10\0\0\0\1\0", True),
        (b"RIFF\0\0\0\0WAVEfmt \x10\0\0\0\3\0", False),  # of floating-point samples
        (b"RIFF\0\0\0\0WAVELIST\x10\0\0\0\3\0", True),
        (b"RIFF\0\0\0\0AVI fmt \x10\0\0\0\1\0", False),
        (b"RIFX\0\0\0\0WAVEfmt \x10\0\0\0\1\0", False),
    ],
)
def test_the_start_of_a_file_says_whether_it_is_wav(start, expected):
    file = io.BytesIO(start + b"rest" * bool(start))
    assert (sound._is_wav(file), file.tell()) == (expected, 0)


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_samples_of_every_size_are_read(size):
    content, numbers = io.BytesIO(), [0, 1, -1, 2 ** (8 * size - 1) - 1, -(2 ** (8 * size - 1))]
    with wave.open(content, "wb") as file:
        file.setparams((1, size, RATE, 0, "NONE", ""))
        shifted = [number + 128 * (size == 1) for number in numbers]  # of one byte: unsigned
        file.writeframes(b"".join(n.to_bytes(size, "little", signed=size > 1) for n in shifted))
    content.seek(0)
    expected = torch.tensor(numbers, dtype=torch.float64) / 2 ** (8 * size - 1)
    torch.testing.assert_close(sound.read_wav(content, "it", RATE), expected.float())


def test_loudness_changes_nothing():
    torch.manual_seed(0)
    speech = tone(300) + 0.1 * torch.randn(4000)
    torch.testing.assert_close(
        log_mel(speech, RATE), log_mel(speech / 20, RATE), atol=1e-3, rtol=1e-3
    )


def test_silence_between_digits_is_sixty_decibels_below_them():
    features = log_mel(torch.cat([torch.zeros(4000), torch.randn(4000)]), RATE)
    quiet, loud = features[5:40].mean(), features[60:90].mean()
    assert 1.5 < loud - quiet < 2.5  # two values, of mean zero and deviation one
    assert features[5:40].std(0).max() < 1e-5


def test_features_have_mean_zero_and_deviation_one():
    torch.manual_seed(0)
    features = log_mel(torch.cat([tone(300), torch.randn(4000)]), RATE)
    assert features.mean().abs() < 1e-4
    assert features.square().mean() == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize("samples", [torch.zeros(8000), torch.full((8000,), 0.5), torch.zeros(0)])
def test_silence_is_all_zeros_or_finite(samples):
    features = log_mel(samples, RATE)
    assert features.isfinite().all()
    if not samples.any():
        assert not features.any()


def test_a_long_recording_in_blocks_is_the_same(monkeypatch):
    torch.manual_seed(0)
    speech = torch.randn(9_000)
    whole = log_mel(speech, RATE)
    monkeypatch.setattr(sound, "BLOCK_FRAMES", 7)
    torch.testing.assert_close(log_mel(speech, RATE), whole)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((torch.zeros(4, 2), RATE), "must be a floating-point tensor [samples], not [4, 2]"),
        ((torch.zeros(4, dtype=torch.long), RATE), "must be a floating-point tensor"),
        (([1.0], RATE), "not [1.0]"),
        ((torch.zeros(4), 0), "rate must be a whole number of at least 100, not 0"),
        ((torch.zeros(4), RATE, 0), "bins must be a whole number of at least 1, not 0"),
    ],
)
def test_a_mistake_is_named(arguments, message):
    with pytest.raises(InvalidInput) as refused:
        log_mel(*arguments)
    assert message in str(refused.value)


@pytest.mark.parametrize("bins", [1, 10, 40])
def test_bands_are_triangles_on_the_mel_scale(bins):
    mels = np.linspace(2595 * math.log10(1 + 20 / 700), 2595 * math.log10(1 + 4000 / 700), bins + 2)
    edges = 700 * (10 ** (mels / 2595) - 1)
    frequencies = np.arange(129) * RATE / 256
    expected = [
        np.interp(frequencies, edges[i : i + 3], [0, 1, 0], left=0, right=0) for i in range(bins)
    ]
    found = sound._bands(RATE, bins, 256)
    np.testing.assert_allclose(found.numpy(), np.array(expected).T, atol=2e-3)


# of 200 samples at most, the last 33 are searched for the quietest 10
@pytest.mark.parametrize(
    ("quiet", "cut"),
    [((180, 190), 185), ((167, 177), 172), ((190, 200), 195), ((150, 160), 172), ((200, 210), 172)],
)
def test_a_recording_is_cut_in_the_middle_of_the_quietest_tenth_of_a_second(quiet, cut):
    samples = torch.ones(205)
    samples[slice(*quiet)] = 0
    first, second = sound.split_at_pauses(samples, 100, 2.0)
    assert (len(first), len(second)) == (cut, 205 - cut)


def test_a_recording_that_fits_is_not_cut():
    assert [len(piece) for piece in sound.split_at_pauses(torch.ones(200), 100, 2.0)] == [200]
    assert len(sound.split_at_pauses(torch.ones(201), 100, 2.0)) == 2
    assert [len(piece) for piece in sound.split_at_pauses(torch.ones(3), 1, 0.5)] == [1, 1, 1]


def test_silence_is_sixty_decibels_below_full_scale():
    for loudness, silent in ((0.00099, True), (0.00101, False)):
        assert sound.is_silent(torch.full((RATE,), loudness), RATE) is silent
        short = torch.zeros(RATE)
        short[200:1000] = loudness  # the tenth of a second that is looked at
        assert sound.is_silent(short, RATE) is silent
    short[200:300] = 0  # the loudest tenth of a second is an eighth silence
    assert sound.is_silent(short, RATE)


@pytest.mark.parametrize(("before", "after", "size"), [(3, 7, 7), (100, 1, 1), (1000, 3, 3)])
def test_resampling_keeps_the_length_and_the_mean(before, after, size):
    resampled = sound.resample(torch.full((before,), 0.25), before, after)
    assert resampled.tolist() == pytest.approx([0.25] * size)
    assert sound.resample(torch.ones(0), 3, 7).tolist() == []
    assert len(sound.resample(torch.ones(1), 1000, 1)) == 1


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_samples_are_fractions_of_full_scale(size):
    full = 2 ** (8 * size - 1)
    integers = [-full, -full // 2, 0, full // 4, full - 1]
    stored = [n + 128 for n in integers] if size == 1 else integers  # 8-bit samples are unsigned
    content = b"".join(n.to_bytes(size, "little", signed=size > 1) for n in stored)
    expected = pytest.approx([-1, -0.5, 0, 0.25, 1 - 1 / full], abs=1e-6)
    assert sound._mono(content, size, 1).tolist() == expected
    assert sound._mono(content + b"\0" * (size - 1), size, 1).tolist() == expected
    assert sound._mono(content[: 4 * size], size, 2).tolist() == pytest.approx([-0.75, 0.125])
