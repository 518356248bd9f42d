"""A decoder, noise, schedule or selector made of a wrong value: one line names it and its rule."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import pytest
import torch

from npad import (
    MBR,
    NPAD,
    Beam,
    BestOf,
    Exact,
    Fallback,
    Greedy,
    InvalidInput,
    LengthNormalised,
    Noise,
    Noisy,
    NpadError,
    Sampling,
    SteeredSearch,
)
from npad.distributions import Antithetic, Dropout, Fixed, Laplace
from npad.models.table import TableModel
from npad.schedules import Constant
from npad.selectors import GNMTLength, Rerank


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: NPAD(chains=2.5), "chains must be a whole number of at least 1, not 2.5"),
        (lambda: NPAD(candidates="some"), "candidates must be one of 'best', 'all', not 'some'"),
        (lambda: NPAD("beam"), "inner must be a Decoder, such as Beam"),
        (lambda: NPAD(Beam), r"write Beam\(\), not Beam"),
        (lambda: NPAD(NPAD()), "NPAD cannot be its own inner decoder; use more chains"),
        (lambda: BestOf(Greedy()), "BestOf needs a tuple of decoders"),
        (lambda: BestOf(()), "BestOf needs a tuple of decoders"),
        (lambda: BestOf((Greedy(), "beam")), "each of BestOf's decoders must be a Decoder"),
        (lambda: BestOf((NPAD(),)), "BestOf cannot hold NPAD; put it inside"),
        (lambda: NPAD(chains=3, noise=Noise([0.1, 0.2])), "one for each of 3 chains"),
        *(
            (partial(NPAD, Exact(), selector=selector), "Exact proves the most probable hypothesis")
            for selector in (LengthNormalised(), GNMTLength(0.6))
        ),
        (lambda: NPAD(clean_chain="no"), "clean_chain must be True or False, not 'no'"),
        (
            lambda: NPAD(selector=MBR),
            r"selector must be a function of the candidates, .*: write MBR\(\), not MBR",
        ),
        (
            lambda: NPAD(selector="mbr"),
            "selector must be a function of the candidates, .* not 'mbr'",
        ),
        (
            lambda: Noise(0.3, Constant),
            r"schedule must be a function of step .*: write Constant\(\), not Constant",
        ),
        (
            lambda: Noise(0.3, Laplace()),
            r"schedule must be a function of step and entropy.* not Laplace\(\)",
        ),
        (
            lambda: Noise(0.3, distribution="laplace"),
            r"distribution must be a distribution, such as Gaussian\(\)",
        ),
        (lambda: Fixed(Laplace), r"Fixed's base must be a distribution, .*: write Laplace\(\)"),
        (lambda: NPAD(Fallback(NPAD())), "NPAD cannot be its own inner decoder; use more chains"),
        (lambda: SteeredSearch(Fallback(SteeredSearch())), "SteeredSearch cannot hold Steered"),
        (lambda: Beam(True), "width must be a whole number of at least 1, not True"),
        (lambda: Beam(3, nbest=4), "nbest must be at most the width, 3, not 4"),
        (
            lambda: Sampling(top_p=1.5),
            "top_p must be a finite number above 0 and at most 1, not 1.5",
        ),
        (lambda: Sampling(seed=0.5), "seed must be a whole number"),
        (lambda: Noise(math.nan), "sigma must be a finite number of at least 0, not nan"),
        (lambda: Noise((0.1, -1)), "sigma: each must be a finite number of at least 0, not -1"),
        (lambda: Noise(()), "it is empty"),
        (lambda: Noise(np.array(0.3)), "sigma must be a finite number"),
        (lambda: Noise(torch.tensor(0.3)), "sigma must be a finite number"),
        (
            lambda: Noise(0.3, lambda step: step),
            "schedule must be a function of step and entropy: too many positional",
        ),
        (
            lambda: Noise(0.3, distribution=Dropout()),
            r"Dropout is relative to what it perturbs: write Noise\(0.3, …, rel",
        ),
        (lambda: Noise(0.3, distribution=Fixed(Dropout())), "is relative to what it perturbs"),
        (lambda: Antithetic(Dropout()), "Antithetic needs additive noise; Dropout has no negative"),
        (
            lambda: MBR("rouge"),
            "utility must be 'bleu', 'chrf', .* or a function of two texts, not 'rouge'",
        ),
        (lambda: Noisy(TableModel, Noise(0.3)), "TableModel"),
        (lambda: Rerank(3), "Rerank needs a function of a Hypothesis, not 3"),
    ],
)
def test_a_wrong_value_is_named_with_its_rule(make, message):
    with pytest.raises(InvalidInput, match=message) as caught:
        make()
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, NpadError)
    assert "\n" not in str(caught.value)


def test_sigmas_may_come_as_an_array():
    assert Noise(torch.linspace(0, 1, 3).tolist()).sigma == (0.0, 0.5, 1.0)
    assert Noise(np.array([0.0, 0.5])).sigma == (0.0, 0.5)
