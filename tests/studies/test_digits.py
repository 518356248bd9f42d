"""Strings of spoken digits: seeded, of one speaker, with the noise that is asked for."""

from __future__ import annotations

import math

import pytest
import torch

from speech_cases import corpus as corpus  # a fixture
from speech_cases import tone
from studies import digits
from studies.digits import RATE, read_takes, training_strings, utterances, with_noise


def test_strings_are_digits_of_one_speaker_and_seeded(corpus):
    takes = read_takes(corpus / "fsdd.tar.xz", range(5), RATE)
    assert {name: len(digits) for name, digits in takes.items()} == {"ada": 10, "bob": 10}
    assert {len(recordings) for digits in takes.values() for recordings in digits.values()} == {5}
    strings = utterances(takes, 60, RATE, seed=1)
    assert {len(string.text.split()) for string in strings} == {3, 4, 5, 6, 7, 8}
    assert {string.speaker for string in strings} == {"ada", "bob"}
    again = utterances(takes, 60, RATE, seed=1)
    assert all(torch.equal(a.samples, b.samples) for a, b in zip(strings, again, strict=True))
    other = utterances(takes, 60, RATE, seed=2)
    assert [string.text for string in other] != [string.text for string in strings]


def test_no_take_is_in_two_of_the_splits(corpus):
    splits = digits.TEST_TAKES, digits.VALIDATION_TAKES, digits.TRAINING_TAKES
    heard = []
    for split in splits:
        takes = read_takes(corpus / "fsdd.tar.xz", split, RATE)
        heard += [
            r.numpy().tobytes() for said in takes.values() for rs in said.values() for r in rs
        ]
    assert len(heard) == len(set(heard)) == 2 * 10 * 12


@pytest.mark.parametrize("decibels", [20, 0])
def test_noise_has_the_level_it_says(decibels):
    sound = tone(300, 2.0, RATE)
    noise = with_noise(sound, decibels, seed=1) - sound
    ratio = sound.square().mean() / noise.square().mean()
    assert 10 * math.log10(ratio) == pytest.approx(decibels, abs=0.3)


def test_strings_to_train_on_are_clean_or_noisy(corpus):
    takes = read_takes(corpus / "fsdd.tar.xz", range(5), RATE)
    plain = utterances(takes, 60, RATE, seed=3)
    found = list(training_strings(takes, 60, RATE, seed=3))
    assert [string.text for string in found] == [string.text for string in plain]
    clean = [torch.equal(a.samples, b.samples) for a, b in zip(found, plain, strict=True)]
    assert 10 < sum(clean) < 40
    again = training_strings(takes, 60, RATE, seed=3)
    assert all(torch.equal(a.samples, b.samples) for a, b in zip(found, again, strict=True))
