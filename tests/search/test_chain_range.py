"""Chain ranges, run apart and merged, are NPAD; however the chains are divided."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cases import NOISY, assert_same, by_name, npad, recurrent, summaries
from npad import (
    MBR,
    NPAD,
    Beam,
    Greedy,
    Hypothesis,
    InvalidInput,
    LengthNormalised,
    MostProbable,
    Noise,
    decode,
)
from npad.distributions import Antithetic, Dropout, Fixed, Gaussian, Orthogonal
from npad.hypotheses import Hypotheses
from npad.selectors import GNMTLength, Rerank

LENGTH = 7


def in_ranges(model, source, decoder, cuts, ids=None):
    """Decode each range of chains apart, and merge."""
    bounds = [0, *cuts, decoder.chains]
    parts = [
        decode(model, source, decoder.chain_range(start, stop), LENGTH, ids)
        for start, stop in pairwise(bounds)
    ]
    return [
        decoder.merge([hypothesis for part in parts for hypothesis in part[sentence]])
        for sentence in range(len(source))
    ]


def counts(found):
    return [[hypothesis.count for hypothesis in hypotheses] for hypotheses in found]


RANGED = NOISY | {
    "sigma-per-chain": npad(Greedy(), chains=5, noise=Noise((0.0, 0.1, 0.9, 3.0, 0.2)))
}


@pytest.mark.parametrize("decoder", **by_name(RANGED))
@pytest.mark.parametrize("cuts", [[1], [2, 3], [1, 2, 3, 4]], ids=str)
def test_ranges_of_chains_merge_to_the_whole(decoder, cuts):
    model, source = recurrent(), summaries(3)
    whole = decode(model, source, decoder, LENGTH)
    merged = in_ranges(model, source, decoder, cuts)
    assert_same(merged, whole)
    assert counts(merged) == counts(whole)


@pytest.mark.parametrize("decoder", **by_name(NOISY))
def test_the_candidates_of_every_chain_merge_to_the_whole(decoder):
    model, source = recurrent(), summaries(3)
    found = [
        decode(model, source, decoder.chain_range(*bounds, distinct=False), LENGTH)
        for bounds in ((0, 2), (2, decoder.chains))
    ]
    merged = [decoder.merge(first + second) for first, second in zip(*found, strict=True)]
    whole = decode(model, source, decoder, LENGTH)
    assert_same(merged, whole)
    assert counts(merged) == counts(whole)
    for candidates in found[1]:
        chains = [candidate.chain for candidate in candidates]
        assert chains == sorted(chains)
        assert set(chains) == set(decoder.numbered().numbers[2:].tolist())


DISTRIBUTIONS = [Gaussian(), Antithetic(), Orthogonal(), Fixed(), Dropout()]


@pytest.mark.parametrize("distribution", DISTRIBUTIONS, ids=lambda d: type(d).__name__)
@settings(max_examples=20)
@given(chains=st.integers(2, 9), data=st.data())
def test_a_chain_does_not_depend_on_the_range_it_runs_in(distribution, chains, data):
    cut = data.draw(st.integers(1, chains - 1))
    noise = Noise(0.5, distribution=distribution, relative=isinstance(distribution, Dropout))
    decoder = NPAD(Greedy(), chains, noise, clean_chain=data.draw(st.booleans()))
    model, source = recurrent(), summaries(2)
    assert_same(in_ranges(model, source, decoder, [cut]), decode(model, source, decoder, LENGTH))


SELECTORS = [LengthNormalised(), GNMTLength(0.8), MBR(), Rerank(lambda h: -len(h.tokens))]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("selector", SELECTORS, ids=lambda s: type(s).__name__)
def test_the_driver_selects_as_the_search_does(selector, dtype):
    """One range has the same batch shape, so that float32 results are bit-identical as well."""
    decoder = npad(Beam(3), candidates="all", selector=selector, chains=6)
    model, source = recurrent(dtype=dtype), summaries(4, dtype)
    found = decode(model, source, decoder.chain_range(0, 6), LENGTH)
    assert [decoder.merge(hypotheses) for hypotheses in found] == [
        [replace(hypothesis, proven=None) for hypothesis in hypotheses]
        for hypotheses in decode(model, source, decoder, LENGTH)
    ]


def test_of_equal_candidates_the_first_stays_and_the_counts_add_up():
    first = Hypothesis((1, 2), -1.0, True, chain=0, noisy_log_prob=-1.5, count=2)
    other = Hypothesis((1,), -0.5, False, chain=1, noisy_log_prob=-2.0)
    again = replace(first, chain=7, noisy_log_prob=-9.0, count=3)
    assert NPAD(chains=8).merge([first, other, again]) == [replace(first, count=5), other]


def test_hypotheses_survive_the_way_to_tensors_and_back():
    found = decode(recurrent(dtype=torch.float32), summaries(1, torch.float32), npad(Beam(3)), 5)[0]
    tensors = Hypotheses.from_list(found)
    assert tensors.to_lists() == [found]
    assert tensors.log_prob.dtype == torch.float32
    tenth = Hypotheses.from_list([replace(found[0], log_prob=-0.1)])
    assert tenth.log_prob.dtype == torch.float64
    assert Hypotheses.from_list([Hypothesis((), -1.0, True)]).to_lists()[0][0].tokens == ()


@pytest.mark.parametrize(
    ("decoder", "bounds", "rule"),
    [
        (Greedy(), (0, 1), "only NPAD has chains to divide"),
        (NPAD(selector=GNMTLength(beta=0.2)), (0, 1), "needs all chains in one place"),
        (NPAD(chains=5), (5, 6), "start must be a whole number of at most 4, not 5"),
        (NPAD(chains=5), (2, 2), "stop must be a whole number of at least 3, not 2"),
        (NPAD(chains=5), (2, 6), "stop must be a whole number of at most 5, not 6"),
    ],
)
def test_a_range_that_cannot_be_run_is_refused(decoder, bounds, rule):
    with pytest.raises(InvalidInput, match=rule):
        decoder.chain_range(*bounds)


def test_a_range_takes_the_rows_of_its_chains():
    assert NPAD(Beam(3), chains=50).chain_range(10, 20).rows == 30
    assert NPAD(selector=MostProbable()).chain_range(0, 50).rows == 50
