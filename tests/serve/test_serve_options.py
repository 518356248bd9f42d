"""Decoders from the options of a request."""

from __future__ import annotations

import math

import pytest

from npad import (
    MBR,
    NPAD,
    Beam,
    Diverse,
    Exact,
    Greedy,
    InvalidInput,
    LengthNormalised,
    Noise,
    Sampling,
)
from npad.schedules import Power
from npad.search.defaults import Defaults
from npad.search.registry import DECODERS
from npad.search.selected import Selected
from npad.serve.limits import Limits
from npad.serve.options import choose, defaults_shown, option_names, parts_shown, resolved

DEFAULTS, LIMITS = Defaults(), Limits()


def chosen(**options):
    return choose(options, DEFAULTS, LIMITS)


@pytest.mark.parametrize(
    ("options", "decoder"),
    [
        ({}, NPAD()),
        ({"decoder": "greedy"}, Greedy()),
        ({"decoder": "beam", "width": 3}, Beam(3)),
        ({"decoder": "beam", "width": "3", "nbest": "2"}, Beam(3, nbest=2)),
        ({"decoder": "diverse", "eta": 0.5}, Diverse(eta=0.5)),
        (
            {"decoder": "sampling", "temperature": "0.5", "seed": 7},
            Sampling(temperature=0.5, seed=7),
        ),
        ({"decoder": "exact", "budget": 50}, Exact(50)),
        ({"chains": 5, "sigma": 0.5, "seed": 3}, NPAD(chains=5, noise=Noise(0.5), seed=3)),
        ({"chains": "5", "sigma": "0.5", "seed": "3"}, NPAD(chains=5, noise=Noise(0.5), seed=3)),
        ({"schedule": "power(p=0.7)"}, NPAD(noise=Noise(0.3, Power(0.7)))),
        ({"relative": "true"}, NPAD(noise=Noise(0.3, relative=True))),
        ({"relative": False}, NPAD()),
        ({"inner": "beam", "width": 4, "chains": 9}, NPAD(Beam(4), 9)),
        ({"inner": "sampling", "seed": 4, "samples": 1}, NPAD(Sampling(1, seed=4), seed=4)),
        ({"selector": "mbr", "chains": 9}, NPAD(chains=9, selector=MBR())),
        (
            {"decoder": "beam", "selector": "length-normalised"},
            Selected(Beam(), LengthNormalised()),
        ),
        ({"sigma": [0, 0.1], "chains": 2}, NPAD(chains=2, noise=Noise((0, 0.1)))),
        ({"sigma": "0,0.1", "chains": 2}, NPAD(chains=2, noise=Noise((0.0, 0.1)))),
        ({"noise": "uniform"}, chosen(distribution="uniform").decoder),
        ({"chains": None}, NPAD()),
    ],
    ids=str,
)
def test_options_describe_a_decoder(options, decoder):
    assert choose(options, DEFAULTS, LIMITS).decoder == decoder


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"decoder": "beams"}, "decoder must be one of greedy, "),
        (
            {"decoder": "npad(chains=9)", "width": 3},
            "width does not go with decoder npad.chains=9.: ",
        ),
        ({"width": 3}, "width does not go with inner greedy, which has no options"),
        (
            {"decoder": "greedy", "seed": 3},
            "seed does not go with decoder greedy, which has",
        ),
        ({"widht": 3}, "there is no option 'widht'"),
        ({"x" * 999: 3}, "there is no option 'xxx"),
        ({"inner": "npad"}, "NPAD cannot be its own inner decoder"),
        ({"inner": "exacts"}, "inner must be one of"),
        ({"inner": "exact"}, "budget must be a whole number of at most 100000, not 5000000"),
        ({"sigma": math.nan}, "sigma must be a finite number"),
        ({"sigma": "nan"}, "sigma must be a finite number"),
        ({"sigma": -1}, "sigma must be"),
        ({"sigma": "much"}, "sigma must be a number"),
        ({"sigma": {}}, "sigma must be a number or a text"),
        ({"sigma": [[1]]}, "sigma must be"),
        ({"chains": 10**9}, "must be at most 1,024 on this server, not 1,000,000,000"),
        ({"chains": "1000000000"}, "must be at most 1,024"),
        ({"chains": 10**30}, "chains must be a whole number of at most"),
        ({"chains": 0}, "chains must be"),
        ({"chains": 2.5}, "chains must be a whole number"),
        ({"chains": True}, "chains must be a whole number"),
        ({"chains": 100, "inner": "beam", "width": 100}, "must be at most 1,024"),
        ({"chains": 300, "selector": "mbr"}, "must be at most 256 with the selector mbr"),
        ({"decoder": "sampling", "samples": 10**9}, "must be at most 1,024"),
        ({"decoder": "exact", "budget": 10**9}, "budget must be a whole number of at most 100000"),
        ({"max_length": 10**6}, "max_length must be a whole number of at most 500"),
        ({"max_length": 0}, "max_length must be"),
        ({"nbest": 0}, "nbest must be"),
        ({"decoder": "beam", "nbest": 6}, "nbest must be at most the width"),
        ({"schedule": "soon"}, "schedule must be one of"),
        ({"schedule": 3}, "schedule must be"),
        ({"selector": "with-cut(" * 200}, "selector must have at most 100 characters"),
        ({"relative": "perhaps"}, "relative must be true or false"),
        ({"relative": "yes", "distribution": "x"}, "noise must be one of"),
        ({"noise": "dropout"}, "noise dropout is a share of what it perturbs: add relative"),
        ({"decoder": "fallback", "temperatures": [0.5] * 999}, "must be at most 1,024"),
        ({"decoder": "best-of", "decoders": ["beam(width=999)"] * 2}, "must be at most 1,024"),
        (
            {"decoder": "mbr-decoding", "pseudo_references": "sampling(samples=999)", "width": 99},
            "selector mbr",
        ),
    ],
    ids=lambda value: str(value)[:40],
)
def test_options_that_break_a_rule_are_refused(options, message):
    with pytest.raises(InvalidInput, match=message) as refused:
        choose(options, DEFAULTS, LIMITS)
    assert len(str(refused.value)) < 700
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("name", DECODERS.kinds)
def test_a_resolved_choice_chooses_itself(name):
    first = chosen(decoder=name)
    again = choose(resolved(first), DEFAULTS, LIMITS)
    assert again == first


@pytest.mark.parametrize(
    "options",
    [
        {"inner": "beam", "width": 3, "selector": "gnmt-length(alpha=0.5,beta=0.0)"},
        {"decoder": "beam", "selector": "length-normalised", "width": 3},
        {"sigma": [0, 0.5], "chains": 2, "schedule": "cosine(steps=9)", "relative": True},
    ],
    ids=str,
)
def test_so_does_one_with_many_options(options):
    first = choose(options, DEFAULTS, LIMITS)
    assert choose(resolved(first), DEFAULTS, LIMITS) == first


def test_every_part_that_is_shown_is_accepted():
    parts = parts_shown()
    for schedule in parts["schedules"]:
        chosen(schedule=schedule)
    for distribution in parts["distributions"]:
        chosen(distribution=distribution, relative=True)
    for selector in parts["selectors"]:
        chosen(selector=selector, chains=5)
    for inner in parts["inners"]:
        chosen(inner=inner, chains=1)


def test_defaults_are_those_of_the_model():
    assert defaults_shown(DEFAULTS)["sigma"] == 0.3
    relative = defaults_shown(Defaults.from_facts(0.1, open_ended=True))
    assert (relative["sigma"], relative["relative"]) == (0.1, True)
    assert relative["selector"] == "with-cut(selector=most-probable)"
    assert set(defaults_shown(DEFAULTS)) <= set(option_names())
