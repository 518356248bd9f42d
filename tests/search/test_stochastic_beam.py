"""Stochastic beam search draws without replacement, as the enumerated distribution says."""

from __future__ import annotations

import math
from collections import Counter
from itertools import permutations

import pytest
import torch

from cases import p_value, recurrent, summaries, tokens
from npad import StochasticBeam, decode
from npad.models.table import TableModel
from npad.search.stochastic_beam import given_maximum

DRAWS = 4000


def inclusion(probabilities: dict, k: int) -> dict:
    """The probability that each output is among k samples drawn one after the other."""
    included = dict.fromkeys(probabilities, 0.0)
    for order in permutations(probabilities, k):
        p, left = 1.0, 1.0
        for output in order:
            p *= probabilities[output] / left
            left -= probabilities[output]
        for output in order:
            included[output] += p
    return included


@pytest.mark.parametrize("k", [1, 2, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
def test_inclusion_probabilities_are_those_of_sampling_without_replacement(k, dtype):
    model = TableModel.random(3, 2, seed=4, dtype=dtype)
    truth = {o.tokens: math.exp(o.log_prob) for o in model.outputs(0, 10)}
    assert sum(truth.values()) == pytest.approx(1)
    found = decode(model, [0] * DRAWS, StochasticBeam(k, seed=3), 10, ids=range(DRAWS))
    assert all(len({h.tokens for h in one}) == k for one in found)
    drawn = Counter(h.tokens for one in found for h in one)
    for output, p in inclusion(truth, k).items():
        expected = [p * DRAWS, (1 - p) * DRAWS]
        if min(expected) > 8:
            assert p_value([drawn[output], DRAWS - drawn[output]], expected) > 1e-3


def test_a_narrow_beam_returns_the_first_samples_of_a_wide_one():
    """The noise is keyed by the prefix, so the two see the same noisy scores."""
    model, source = recurrent(scale=1.0, vocabulary=20), summaries(4)
    found = {k: tokens(decode(model, source, StochasticBeam(k), 9)) for k in (1, 4, 9)}
    for few, some, many in zip(*found.values(), strict=True):
        assert set(few) < set(some) < set(many)


def test_a_beam_as_wide_as_the_outputs_returns_them_all():
    model = TableModel.random(3, 2, seed=4, dtype=torch.float64)
    outputs = {o.tokens: o.log_prob for o in model.outputs(0, 10)}
    (found,) = decode(model, [0], StochasticBeam(len(outputs) + 5), 10)
    assert {h.tokens: pytest.approx(h.log_prob) for h in found} == outputs
    assert [h.log_prob for h in found] == sorted((h.log_prob for h in found), reverse=True)


def test_children_have_their_parents_noisy_score_as_maximum():
    torch.manual_seed(0)
    noisy, maximum = torch.randn(50, 6, dtype=torch.float64) * 30, torch.randn(50, 1).double()
    noisy[::7, 2] = -torch.inf
    given = given_maximum(noisy, maximum)
    assert torch.allclose(given.amax(-1, keepdim=True), maximum)
    assert (given.argsort(-1) == noisy.argsort(-1)).float().mean() > 0.9
    plain = -torch.log(
        torch.exp(-maximum) - torch.exp(-noisy.amax(-1, keepdim=True)) + torch.exp(-noisy)
    )
    small = (noisy.abs() < 20).all(-1)
    assert torch.allclose(given[small], plain[small])
