"""What --decoder, --inner and their options build, without running a command."""

from __future__ import annotations

import pytest

from npad import MBR, NPAD, Beam, Greedy, InvalidInput, Noise, Sampling
from npad.cli.decoder_options import make_decoder


def test_a_seed_reaches_the_inner_decoder():
    by_name = make_decoder("npad", {"inner": "sampling", "samples": 3, "seed": 7})
    assert by_name == NPAD(Sampling(3, seed=7), seed=7)


def test_a_seed_reaches_an_inner_decoder_with_fields():
    assert make_decoder("npad", {"inner": "sampling(samples=3)", "seed": 7}) == NPAD(
        Sampling(3, seed=7), seed=7
    )
    own_seed = make_decoder("npad", {"inner": "sampling(samples=3,seed=2)", "seed": 7})
    assert own_seed == NPAD(Sampling(3, seed=2), seed=7)


def test_fields_of_other_kinds():
    text = "npad(chains=2,noise=noise(sigma=0.1,0.2),selector=mbr(utility=bleu))"
    assert make_decoder(text, {}) == NPAD(Greedy(), 2, Noise((0.1, 0.2)), selector=MBR("bleu"))


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        (
            "npad",
            {"inner": "beam(width=3)", "width": 4},
            r"--width does not go with --inner beam\(width=3\): write its field within the bra",
        ),
        ("beam(width=3)", {"width": 4}, r"--width does not go with --decoder beam\(width=3\): "),
        ("beam", {"chains": 4}, "--chains does not go with --decoder beam, which has --finish, "),
        ("npad", {"inner": "npad"}, "NPAD cannot be its own inner decoder"),
        ("npad", {"sigma": "0.1,x"}, "--sigma must be a number, not 'x'"),
    ],
)
def test_options_that_do_not_go_together(name, settings, message):
    with pytest.raises(InvalidInput, match=message):
        make_decoder(name, settings)


def test_the_beam_of_an_inner_decoder():
    assert make_decoder("npad", {"inner": "beam", "width": 3}) == NPAD(Beam(3))
