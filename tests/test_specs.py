"""A part's name in a signature makes the same part again."""

from __future__ import annotations

import pytest

from npad import Antithetic, InvalidInput, Noise, Power, StudentT
from npad.noise.registry import DISTRIBUTIONS, SCHEDULES, noise_as_names, noise_from_names
from npad.specs import label

EVERY = [
    *((kind(), SCHEDULES) for kind in SCHEDULES),
    *((kind(), DISTRIBUTIONS) for kind in DISTRIBUTIONS),
]
EVERY += [(Antithetic(StudentT(3.5)), DISTRIBUTIONS)]


@pytest.mark.parametrize(("part", "offered"), EVERY, ids=[label(part) for part, _ in EVERY])
def test_a_label_is_read_back(part, offered):
    assert offered.parse(label(part)) == part


def test_noise_is_read_back():
    noise = Noise(0.4, Power(0.7), Antithetic(), site="output", relative=True)
    assert noise_from_names(**noise_as_names(noise)) == noise


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("pover", "schedule must be one of 1/t, constant, power, .*, not 'pover'"),
        ("power(q=1)", r"power has no field 'q=1'; it has p=…"),
        ("constant(p=1)", "constant has no field 'p=1'; it has none"),
        ("power(p=x)", "schedule power's p must be a number, not 'x'"),
        ("power(p=1", "schedule must be one of"),
    ],
)
def test_mistakes_are_named(text, message):
    with pytest.raises(InvalidInput, match=message):
        SCHEDULES.parse(text)
