"""Samples that share their prefixes: those of `Sampling`, from fewer model calls."""

from __future__ import annotations

import pytest

from attention_cases import SOURCE, build
from cases import assert_same, counted
from npad import NPAD, Noise, Sampling, SharedSampling, decode
from npad.models.cgru.fast import Prepared

OPTIONS = [{}, {"temperature": 0.4}, {"top_k": 3}, {"top_p": 0.8, "seed": 5}]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("samples", [1, 2, 7, 40])
@pytest.mark.parametrize("max_length", [1, 9])
def test_the_samples_are_those_of_sampling(samples, options, max_length):
    plain, shared = (
        counted(decode, Prepared(build()), SOURCE, kind(samples, **options), max_length)
        for kind in (Sampling, SharedSampling)
    )
    assert_same(shared[0], plain[0])
    idle = 8 * len(SOURCE) * max_length  # rows of groups
    assert shared[1].search <= plain[1].search + idle


def test_the_calls_are_the_distinct_prefixes_and_idle_rows():
    (found, shared), (_, plain) = (
        counted(decode, Prepared(build(scale=1.5)), SOURCE, kind(60, temperature=0.3), 10)
        for kind in (SharedSampling, Sampling)
    )
    distinct = sum(
        len({h.tokens[:t] for h in hypotheses for t in range(len(h.tokens) + h.finished)})
        for hypotheses in found
    )
    assert distinct <= shared.search <= 2 * distinct
    assert shared.search < plain.search / 3


def test_a_model_that_cannot_share_is_sampled_row_by_row():
    model = build()
    expected = decode(model, SOURCE, Sampling(5), 8)
    assert_same(decode(model, SOURCE, SharedSampling(5), 8), expected)
    chains = [
        decode(Prepared(model), SOURCE, NPAD(inner(3), 3, Noise(0.3)), 8)
        for inner in (Sampling, SharedSampling)
    ]
    assert_same(*chains)
