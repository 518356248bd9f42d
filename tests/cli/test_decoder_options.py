"""What --decoder, --inner and their options build, without running a command."""

from __future__ import annotations

import pytest

from cases import make_decoder
from npad import MBR, NPAD, Beam, Greedy, InvalidInput, MostProbable, Noise, Sampling
from npad.cli.decoder_options import compared_decoders
from npad.distributions import Dropout
from npad.search.defaults import Defaults
from npad.selectors import WithCut

SHARE = Noise(0.1, relative=True)
OPEN_ENDED = Defaults(SHARE, WithCut())


NESTED = "npad(chains=2,noise=noise(sigma=0.1,0.2),selector=mbr(utility=bleu))"


@pytest.mark.parametrize(
    ("name", "settings", "expected"),
    [
        ("beam", {"width": 3, "finish": "pool", "nbest": 2}, Beam(3, "pool", 2)),
        ("npad", {"inner": "beam", "width": 3, "nbest": 10}, NPAD(Beam(3))),
        (NESTED, {}, NPAD(Greedy(), 2, Noise((0.1, 0.2)), selector=MBR("bleu"))),
        # A seed reaches the inner decoder, if it is not given its own.
        ("npad", {"inner": "sampling", "samples": 3, "seed": 7}, NPAD(Sampling(3, seed=7), seed=7)),
        ("npad", {"inner": "sampling(samples=3)", "seed": 7}, NPAD(Sampling(3, seed=7), seed=7)),
        (
            "npad",
            {"inner": "sampling(samples=3,seed=2)", "seed": 7},
            NPAD(Sampling(3, seed=2), seed=7),
        ),
    ],
)
def test_options_make_the_decoder_they_describe(name, settings, expected):
    assert make_decoder(name, settings) == expected


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("npad", {"inner": "beam(width=3)", "width": 4}, r"beam\(width=3\): write its field"),
        ("beam(width=3)", {"width": 4}, r"--width does not go with --decoder beam\(width=3\): "),
        ("beam", {"chains": 4}, "--chains does not go with --decoder beam, which has --finish, "),
        ("npad", {"inner": "npad"}, "NPAD cannot be its own inner decoder"),
        ("npad", {"sigma": "0.1,x"}, "--sigma must be numbers separated by commas, not '0.1,x'"),
    ],
)
def test_options_that_do_not_go_together(name, settings, message):
    with pytest.raises(InvalidInput, match=message):
        make_decoder(name, settings)


@pytest.mark.parametrize(
    ("name", "settings", "expected"),
    [
        ("npad", {}, NPAD(noise=SHARE, selector=WithCut())),
        ("npad", {"sigma": "0.5"}, NPAD(noise=Noise(0.5, relative=True), selector=WithCut())),
        ("npad", {"relative": False}, NPAD(noise=Noise(0.1), selector=WithCut())),
        ("npad", {"selector": "most-probable"}, NPAD(noise=SHARE, selector=MostProbable())),
        ("npad(chains=3)", {}, NPAD(chains=3, noise=SHARE, selector=WithCut())),
        (
            "npad(noise=noise(sigma=0.2),share_noise=yes)",
            {},
            NPAD(noise=Noise(0.2), share_noise=True, selector=WithCut()),
        ),
        ("npad(selector=mbr)", {}, NPAD(noise=SHARE, selector=MBR())),
        (
            "npad",
            {"noise": "dropout"},
            NPAD(noise=Noise(0.1, distribution=Dropout(), relative=True), selector=WithCut()),
        ),
    ],
)
def test_options_that_are_not_set_have_the_models_defaults(name, settings, expected):
    assert make_decoder(name, settings, OPEN_ENDED) == expected


def test_compared_decoders_take_the_models_default_and_relative():
    relative = compared_decoders({"relative": True, "sigma": "0.2"})
    for decoders, noise in (
        (compared_decoders({}, OPEN_ENDED), SHARE),
        (relative, Noise(0.2, relative=True)),
    ):
        noises = [d.noise for d in decoders.values() if isinstance(d, NPAD)]
        assert noises == [noise, noise]
