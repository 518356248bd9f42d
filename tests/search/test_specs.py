"""A part's name in a signature makes the same part again."""

from __future__ import annotations

import pytest

from npad import (
    MBR,
    NPAD,
    Beam,
    BestOf,
    Exact,
    Greedy,
    InvalidInput,
    LengthNormalised,
    Noise,
    Sampling,
)
from npad.distributions import DISTRIBUTIONS, Antithetic, StudentT
from npad.noise.noisy import noise_as_names, noise_from_names
from npad.schedules import SCHEDULES, Power
from npad.search.registry import DECODERS, SELECTORS
from npad.specs import label

EVERY = [
    *((kind(), SCHEDULES) for kind in SCHEDULES),
    *((kind(), DISTRIBUTIONS) for kind in DISTRIBUTIONS),
    *((kind(), SELECTORS) for kind in SELECTORS),
    *((kind(), DECODERS) for kind in DECODERS),
    (Antithetic(StudentT(3.5)), DISTRIBUTIONS),
    (Exact(10, Beam(3)), DECODERS),
    (Sampling(3, top_k=4, top_p=0.5), DECODERS),
    (BestOf((Greedy(), Beam(4), Sampling(2))), DECODERS),
    (
        NPAD(
            BestOf((Beam(3), Sampling(2, top_k=3))),
            3,
            Noise((0.1, 0.2, 0.3), Power(0.7), Antithetic(StudentT(3.5))),
            selector=MBR("bleu"),
        ),
        DECODERS,
    ),
]


@pytest.mark.parametrize(("part", "offered"), EVERY, ids=[label(part) for part, _ in EVERY])
def test_a_label_is_read_back(part, offered):
    assert offered.parse(label(part)) == part


def test_noise_is_read_back():
    noise = Noise(0.4, Power(0.7), Antithetic(), site="output", relative=True)
    assert noise_from_names(**noise_as_names(noise)) == noise


@pytest.mark.parametrize(
    ("offered", "text", "message"),
    [
        (SCHEDULES, "pover", "schedule must be one of 1/t, constant, power, .*, not 'pover'"),
        (SCHEDULES, "power(q=1)", r"power has no field 'q=1'; it has p=…"),
        (SCHEDULES, "constant(p=1)", "constant has no field 'p=1'; it has none"),
        (SCHEDULES, "power(p=x)", "schedule power's p must be a number, not 'x'"),
        (SCHEDULES, "power(p=1", "schedule must be one of"),
        (DECODERS, "npad(selector=best)", "selector must be one of most-probable, .*, not 'best'"),
        (DECODERS, "npad(noise=gaussian)", "noise must be one of noise, not 'gaussian'"),
        (
            DECODERS,
            "npad(noise=noise(sigma=0.1,x))",
            "^noise's sigma must be numbers separated by commas, not '0.1,x'",
        ),
        (DECODERS, "npad(selector=mbr(text=str))", "text cannot be written as text; set it from"),
        (DECODERS, "npad(greedy)", "npad has no field 'greedy'; it has inner=…"),
        (DECODERS, "best-of(decoders=greedy,breadth)", "must be one of greedy, .*, not 'breadth'"),
        (DECODERS, "sampling(top_k=yes)", "decoder sampling's top_k must be a number, not 'yes'"),
        (DECODERS, "exact(beam=greedy)", "beam must be a Beam"),
        (DECODERS, "beam(width=3,width=4)", "beam has its field 'width' twice"),
    ],
)
def test_mistakes_are_named(offered, text, message):
    with pytest.raises(InvalidInput, match=message):
        offered.parse(text)


def test_a_decoder_in_words():
    decoder = DECODERS.parse("npad(inner=beam(width=3), chains=4, selector=length-normalised)")
    assert decoder == NPAD(Beam(3), 4, selector=LengthNormalised())
