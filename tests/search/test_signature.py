"""Signatures say how a result was made, and tell different ways apart."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from cases import EVERY
from npad import (
    MBR,
    NPAD,
    Beam,
    Decoder,
    Diverse,
    Exact,
    Greedy,
    LengthNormalised,
    Noise,
    Sampling,
    __version__,
    signature,
)
from npad.distributions import Antithetic, Distribution, Dropout, Laplace, StudentT
from npad.models import toy
from npad.schedules import Constant
from npad.selectors import GNMTLength

END = f"|model:toy|version:{__version__}"


@pytest.mark.parametrize(
    ("decoder", "expected"),
    [
        (
            NPAD(),
            "npad|inner:greedy|chains:50|sigma:0.3|schedule:1/t|noise:gaussian|site:hidden|seed:0",
        ),
        (Greedy(), "greedy"),
        (Beam(10), "beam|width:10|finish:shrink|nbest:1"),
        (Diverse(5, 0.01), "diverse|width:5|eta:0.01|nbest:1"),
        (Sampling(5, top_p=0.9), "sampling|samples:5|temperature:1.0|top_k:no|top_p:0.9|seed:0"),
        (Exact(9), "exact|budget:9|beam:beam(width=5,finish=shrink,nbest=1)"),
        (
            NPAD(
                Beam(10),
                5,
                Noise(0.1, Constant(), StudentT(4.0), relative=True),
                selector=LengthNormalised(0.6),
            ),
            "npad|inner:beam(width=10,finish=shrink,nbest=1)|chains:5|sigma:0.1|schedule:constant|noise:student-t(nu=4.0)"
            "|site:hidden|seed:0|selector:length-normalised(alpha=0.6)|relative:yes",
        ),
    ],
    ids=lambda value: value.split("|")[0] if isinstance(value, str) else "",
)
def test_by_hand(decoder, expected):
    assert signature(decoder, toy.model()) == expected + END


def test_parts_of_ones_own_have_a_name():
    class MySigns(Distribution):
        pass

    class Own(Decoder):
        def search(self, model, state, problems): ...

    def late(step, entropy): ...

    mine = signature(
        NPAD(Own(), noise=Noise(0.3, late, MySigns()), selector=GNMTLength()), toy.model()
    )
    assert "|inner:own|" in mine
    assert "late|noise:my-signs|" in mine
    assert "|selector:gnmt-length(alpha=0.6,beta=0.0)" in mine
    assert signature(Own(), toy.model()) == "own" + END


@pytest.mark.parametrize(
    ("ours", "of_numpy"),
    [
        (Beam(3), Beam(np.int64(3))),
        (
            NPAD(chains=2, noise=Noise((0.0, 0.5))),
            NPAD(chains=2, noise=Noise(np.array([0.0, 0.5]))),
        ),
    ],
    ids=["integer", "sigmas"],
)
def test_numbers_of_numpy_are_numbers(ours, of_numpy):
    assert signature(of_numpy, toy.model()) == signature(ours, toy.model())


def test_no_two_decoders_share_one():
    more = [
        NPAD(),
        NPAD(seed=1),
        NPAD(chains=51),
        NPAD(clean_chain=False),
        NPAD(candidates="all"),
        NPAD(share_noise=True),
        NPAD(noise=Noise(0.30000001)),
        NPAD(chains=2, noise=Noise((0.1, 0.2))),
        NPAD(noise=Noise(0.3, relative=True)),
        NPAD(noise=Noise(0.3, site="output")),
        NPAD(noise=Noise(0.3, distribution=Laplace())),
        NPAD(noise=Noise(0.3, distribution=Antithetic())),
        NPAD(noise=Noise(0.3, distribution=Antithetic(Laplace()))),
        NPAD(noise=Noise(0.3, distribution=Dropout(), relative=True)),
        NPAD(selector=MBR("bleu")),
        NPAD(selector=MBR("chrf")),
    ]
    for one, other in combinations([*EVERY.values(), *more], 2):
        assert one == other or signature(one, toy.model()) != signature(other, toy.model())
