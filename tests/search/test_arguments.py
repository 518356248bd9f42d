"""Arguments of decoders, selectors and noise: their defaults, and the last values still allowed."""

from __future__ import annotations

from dataclasses import fields
from functools import partial
from typing import Any

import pytest

from npad import (
    MBR,
    NPAD,
    Beam,
    BestOf,
    Diverse,
    Exact,
    Fallback,
    Greedy,
    InvalidInput,
    LengthNormalised,
    MBRDecoding,
    MostProbable,
    Noise,
    Noisy,
    Sampling,
    Selected,
    SteeredSearch,
    StochasticBeam,
)
from npad.distributions import DISTRIBUTIONS, Antithetic, Fixed, Gaussian, Orthogonal, StudentT
from npad.models.table import TableModel
from npad.schedules import (
    SCHEDULES,
    Adaptive,
    Annealed,
    Constant,
    Cosine,
    Exponential,
    FirstSteps,
    Linear,
    Power,
)
from npad.search.decoder import Cost
from npad.search.registry import DECODERS, SELECTORS
from npad.search.request import Decoding
from npad.selectors import GNMTLength, WithCut, innermost_selector
from npad.training.recipe import Recipe
from npad.validation import BOUNDS, MAX_SEED

TABLE = TableModel.random(3, 2)


@pytest.mark.parametrize(
    ("default", "explicit"),
    [
        (Beam(), Beam(5, "shrink", 1)),
        (Diverse(), Diverse(5, 0.001, 1)),
        (Sampling(), Sampling(50, 1.0, None, None, 0)),
        (Exact(), Exact(100_000, Beam(5))),
        (BestOf(), BestOf((Greedy(), Sampling(49, 0.5)))),
        (NPAD(), NPAD(Greedy(), 50, Noise(0.3), True, 0, MostProbable(), "best", False)),
        (LengthNormalised(), LengthNormalised(1.0)),
        (GNMTLength(), GNMTLength(0.6, 0.0)),
        (MBR(), MBR("chrf", None)),
        (Noise(0.3), Noise(0.3, Annealed(), Gaussian(), "hidden", False)),
        (Noisy(TABLE, Noise(0.3)), Noisy(TABLE, Noise(0.3), 0, False)),
        (Power(), Power(0.5)),
        (Linear(), Linear(20)),
        (Cosine(), Cosine(20)),
        (Exponential(), Exponential(0.8)),
        (FirstSteps(), FirstSteps(3)),
        (Adaptive(), Adaptive(1.0)),
        (StudentT(), StudentT(5.0)),
        (Orthogonal(), Orthogonal(16)),
        (Fixed(), Fixed(Gaussian())),
        (Antithetic(), Antithetic(Gaussian())),
    ],
    ids=lambda part: type(part).__name__,
)
def test_defaults_are_those_documented(default, explicit):
    assert default == explicit


KINDS: list[Any] = [*DECODERS, *SCHEDULES, *DISTRIBUTIONS, *SELECTORS]
BOUNDED = [
    pytest.param(kind, field, id=f"{type(kind()).__name__}-{field.name}")
    for kind in (*KINDS, partial(Noise, sigma=0), Recipe, partial(Decoding, Greedy()))
    for field in fields(kind())
    if set(BOUNDS) & set(field.metadata)
]


@pytest.mark.parametrize(("kind", "field"), BOUNDED)
def test_a_number_may_be_its_bound_and_no_more(kind, field):
    """Just beyond the bounds in a field's metadata it is refused, at an excluded bound also."""
    default = field.default
    step = 1e-9 if "float" in field.type else 1

    def make(number):
        return kind(**{field.name: (number,) if isinstance(default, tuple) else number})

    bounds = {bound: field.metadata[bound] for bound in BOUNDS if bound in field.metadata}
    for bound, value in bounds.items():
        beyond = value - step if bound == "minimum" else value + step
        inside = value + step if bound == "above" else value * (1 - step)
        excluded = bound in ("above", "below")
        make(inside if excluded else value)
        with pytest.raises(InvalidInput, match=rf"{field.name}\b.* must be"):
            make(value if excluded else beyond)


@pytest.mark.parametrize(
    ("make", "field", "allowed", "refused"),
    [
        (partial(Beam, 3), "nbest", 3, 4),
        (partial(Noisy, TABLE, Noise(0.3)), "seed", MAX_SEED, MAX_SEED + 1),
        (Orthogonal, "block", 16, 17),
    ],
)
def test_the_last_value_allowed_and_the_first_refused(make, field, allowed, refused):
    make(**{field: allowed})
    with pytest.raises(InvalidInput, match=f"{field} must be"):
        make(**{field: refused})


def test_only_adaptive_noise_uses_the_entropy():
    """The others must not pay for a softmax over the vocabulary at each step."""
    assert [kind for kind in SCHEDULES if Noise(0.3, kind()).uses_entropy] == [Adaptive]
    assert Noise(0.3, lambda step, entropy: entropy).uses_entropy
    assert not Noise(0.3, Constant()).uses_entropy


@pytest.mark.parametrize(
    ("decoder", "rows", "title"),
    [
        (Greedy(), 1, "greedy"),
        (Beam(4, nbest=2), 4, "beam, 4"),
        (Diverse(4, 0.5), 4, "diverse, 4, η=0.5"),
        (Sampling(7), 7, "sampling, 7"),
        (Exact(9, Beam(3)), 16, "exact"),
        (Exact(9, Beam(40)), 40, "exact"),
        (BestOf((Greedy(), Beam(4), Sampling(3))), 4, "best-of"),
        (NPAD(Beam(4), 6), 24, "NPAD-6 + beam 4"),
        (SteeredSearch(Beam(4)), 4, "steered beam, 4"),
        (StochasticBeam(3), 3, "stochastic-beam, 3"),
        (MBRDecoding(Beam(4), Sampling(7)), 7, "beam, 4, mbr by sampling, 7"),
        (NPAD(Beam(4), 6, candidates="all"), 24, "NPAD-6 + beam 4"),
    ],
    ids=repr,
)
def test_rows_and_titles(decoder, rows, title):
    assert (decoder.rows, decoder.title) == (rows, title)


@pytest.mark.parametrize(
    ("decoder", "cost"),
    [
        (Beam(4), Cost(4)),
        (Exact(9, Beam(40)), Cost(40, budget=9)),
        (BestOf((Beam(4), Sampling(3))), Cost(7)),
        (Fallback(Beam(2), samples=3, temperatures=(0.5, 1.0)), Cost(2 + 3 * 2)),
        (NPAD(Exact(9), 3), Cost(3 * 16, budget=3 * 9)),
        (NPAD(Selected(Beam(4), MBR()), 6), Cost(24, utilities=6 * 4**2)),
        (NPAD(Beam(4), 6, selector=WithCut(MBR())), Cost(24, utilities=24**2)),
        (MBRDecoding(Beam(4), Sampling(7)), Cost(4 + 7, utilities=4 * 7)),
    ],
    ids=repr,
)
def test_the_cost_of_a_decoder_adds_up_that_of_its_parts(decoder, cost):
    assert decoder.cost == cost


@pytest.mark.parametrize(
    ("decoder", "seeded"),
    [
        (Beam(4), Beam(4)),
        (StochasticBeam(4), StochasticBeam(4, seed=7)),
        (SteeredSearch(Sampling(4)), SteeredSearch(Sampling(4, seed=7))),
        (Fallback(Sampling(4)), Fallback(Sampling(4, seed=7), seed=7)),
        (BestOf((Greedy(), Sampling(4))), BestOf((Greedy(), Sampling(4, seed=7)))),
        (NPAD(Sampling(1), 3), NPAD(Sampling(1, seed=7), 3, seed=7)),
        (NPAD(Sampling(4), 1), NPAD(Sampling(4, seed=7), 1)),
        (NPAD(noise=Noise(0)), NPAD(noise=Noise(0))),
    ],
    ids=repr,
)
def test_a_seed_reaches_all_that_draws(decoder, seeded):
    assert decoder.with_seed(7) == seeded


def test_texts_reach_what_compares_them_and_an_output_that_is_checked():
    for compare in (Selected(Sampling(), MBR()), NPAD(selector=WithCut(MBR())), MBRDecoding()):
        texts: Any = compare.with_texts(str)
        selector: Any = innermost_selector(texts.selector)
        assert selector.text is str
        assert texts.with_texts(repr) is texts
    assert Beam().with_texts(str) == Beam()
    assert Fallback().with_texts(str, repr) == Fallback(text=repr)
