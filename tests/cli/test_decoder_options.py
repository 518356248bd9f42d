"""What --decoder, --inner and their options build, without running a command."""

from __future__ import annotations

import pytest

from cases import make_decoder
from npad import (
    MBR,
    NPAD,
    Beam,
    Greedy,
    InvalidInput,
    LengthNormalised,
    MBRDecoding,
    MostProbable,
    Noise,
    Sampling,
    Selected,
)
from npad.cli.decoder_options import compared_decoders
from npad.distributions import Dropout
from npad.search.defaults import Defaults
from npad.search.registry import DECODERS
from npad.search.sampling import Epsilon
from npad.selectors import ModelMBR, WithCut
from npad.specs import label

SHARE = Noise(0.1, relative=True)
CONTINUING = Defaults(SHARE, WithCut())  # of a model that continues text: cut outputs compete
NESTED = "npad(chains=2,noise=noise(sigma=0.1,0.2),selector=mbr(utility=bleu))"
MODEL_MBR = "model-mbr(utility=bleu)"
DESCRIBED = [
    ("beam", {"width": 3, "finish": "pool", "nbest": 2}, Beam(3, "pool", 2)),
    ("npad", {"inner": "beam", "width": 3, "nbest": 10}, NPAD(Beam(3))),
    (NESTED, {}, NPAD(Greedy(), 2, Noise((0.1, 0.2)), selector=MBR("bleu"))),
    # A seed reaches the inner decoder, if it is not given its own.
    ("npad", {"inner": "sampling", "samples": 3, "seed": 7}, NPAD(Sampling(3, seed=7), seed=7)),
    ("npad", {"inner": "sampling(samples=3)", "seed": 7}, NPAD(Sampling(3, seed=7), seed=7)),
    ("npad", {"inner": "sampling(seed=2)", "seed": 7}, NPAD(Sampling(seed=2), seed=7)),
    # A selector wraps a decoder that has candidates.
    ("beam", {"width": 3, "nbest": 2, "selector": "mbr"}, Selected(Beam(3, nbest=2), MBR())),
    ("beam", {"selector": "most-probable"}, Beam()),
    ("sampling", {"selector": "mbr", "seed": 3}, Selected(Sampling(seed=3), MBR())),
    ("beam(width=3)", {"selector": "length-normalised"}, Selected(Beam(3), LengthNormalised())),
    ("selected", {"selector": "mbr", "width": 3}, Selected(Beam(3), MBR())),
    ("selected", {"inner": "sampling", "samples": 9}, Selected(Sampling(9))),
    # Samples are drawn beside the candidates.
    (
        "mbr-decoding",
        {"inner": "npad", "chains": 9, "pseudo_references": "sampling(samples=20)"},
        MBRDecoding(NPAD(chains=9), Sampling(20)),
    ),
    (
        "mbr-decoding",
        {"width": 3, "pseudo_references": "epsilon", "selector": MODEL_MBR},
        MBRDecoding(Beam(3), Epsilon(), ModelMBR("bleu")),
    ),
    ("mbr-decoding", {"seed": 3}, MBRDecoding(Beam(), Sampling(seed=3))),
    ("mbr-decoding", {"seed": 3, "inner": "npad"}, MBRDecoding(NPAD(seed=3), Sampling(seed=3))),
]
BY_DEFAULT = [
    ("npad", {}, NPAD(noise=SHARE, selector=WithCut())),
    ("npad", {"sigma": "0.5"}, NPAD(noise=Noise(0.5, relative=True), selector=WithCut())),
    ("npad", {"relative": False}, NPAD(noise=Noise(0.1), selector=WithCut())),
    ("npad", {"selector": "most-probable"}, NPAD(noise=SHARE, selector=MostProbable())),
    ("npad(chains=3)", {}, NPAD(chains=3, noise=SHARE, selector=WithCut())),
    ("npad(noise=noise(sigma=0.2))", {}, NPAD(noise=Noise(0.2), selector=WithCut())),
    ("npad(selector=mbr)", {}, NPAD(noise=SHARE, selector=MBR())),
    (
        "npad",
        {"noise": "dropout"},
        NPAD(noise=Noise(0.1, distribution=Dropout(), relative=True), selector=WithCut()),
    ),
    ("beam", {}, Selected(Beam(), WithCut())),
    ("beam(width=3)", {}, Selected(Beam(3), WithCut())),
    ("beam", {"selector": "most-probable"}, Beam()),
    ("greedy", {}, Greedy()),
    ("sampling", {"selector": "mbr"}, Selected(Sampling(), MBR())),
    ("mbr-decoding", {}, MBRDecoding()),
]
CASES = [(*case, None) for case in DESCRIBED] + [(*case, CONTINUING) for case in BY_DEFAULT]


@pytest.mark.parametrize(("name", "settings", "expected", "defaults"), CASES)
def test_options_make_the_decoder_they_describe(name, settings, expected, defaults):
    """Options that are not set have the model's defaults; the decoder's label makes it again."""
    decoder = make_decoder(name, settings, defaults)
    assert decoder == expected
    assert DECODERS.parse(label(decoder).replace(",text=no", "")) == decoder


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("npad", {"inner": "beam(width=3)", "width": 4}, r"beam\(width=3\): write its field"),
        ("beam(width=3)", {"width": 4}, r"--width does not go with --decoder beam\(width=3\): "),
        ("beam", {"chains": 4}, "--chains does not go with --decoder beam, which has --finish, "),
        ("npad", {"inner": "npad"}, "NPAD cannot be its own inner decoder"),
        ("npad", {"sigma": "0.1,x"}, "--sigma must be numbers separated by commas, not '0.1,x'"),
        ("greedy", {"selector": "mbr"}, "--selector does not go with --decoder greedy"),
        ("exact(budget=5)", {"selector": "mbr"}, r"does not go with --decoder exact\(budget"),
        ("selected", {"inner": "npad"}, "NPAD has a selector of its own"),
        ("mbr-decoding", {"samples": 9}, "--samples does not go with --inner beam"),
    ],
)
def test_options_that_do_not_go_together(name, settings, message):
    with pytest.raises(InvalidInput, match=message):
        make_decoder(name, settings)


def test_compared_decoders_take_the_models_default_and_relative():
    relative = compared_decoders({"relative": True, "sigma": "0.2"})
    for decoders, noise in (
        (compared_decoders({}, CONTINUING), SHARE),
        (relative, Noise(0.2, relative=True)),
    ):
        noises = [d.noise for d in decoders.values() if isinstance(d, NPAD)]
        assert noises == [noise, noise]
