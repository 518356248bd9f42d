"""Samples that share their prefixes: those of `Sampling`, from fewer model calls."""

from __future__ import annotations

import pytest
import torch

from attention_cases import SOURCE, build
from cases import assert_same
from npad import NPAD, Noise, Sampling, SharedSampling, count_calls, decode
from npad.errors import ModelError
from npad.models.cgru.fast import Prepared

OPTIONS = [{}, {"temperature": 0.4}, {"top_k": 3}, {"top_p": 0.8, "seed": 5}]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("samples", [1, 2, 7, 40])
@pytest.mark.parametrize("max_length", [1, 9])
def test_the_samples_are_those_of_sampling(samples, options, max_length):
    model = Prepared(build())
    with count_calls() as plain:
        expected = decode(model, SOURCE, Sampling(samples, **options), max_length)
    with count_calls() as shared:
        assert_same(decode(model, SOURCE, SharedSampling(samples, **options), max_length), expected)
    assert shared.search <= plain.search + 8 * len(SOURCE) * max_length  # idle rows of groups


def test_the_calls_are_the_distinct_prefixes_and_idle_rows():
    model = Prepared(build(scale=1.5))
    with count_calls() as calls:
        found = decode(model, SOURCE, SharedSampling(60, temperature=0.3), 10)
    distinct = sum(
        len({h.tokens[:t] for h in one for t in range(len(h.tokens) + h.finished)}) for one in found
    )
    assert distinct <= calls.search <= 2 * distinct
    with count_calls() as plain:
        decode(model, SOURCE, Sampling(60, temperature=0.3), 10)
    assert calls.search < plain.search / 3


def test_a_model_that_cannot_share_is_sampled_row_by_row():
    model = build()
    expected = decode(model, SOURCE, Sampling(5), 8)
    assert_same(decode(model, SOURCE, SharedSampling(5), 8), expected)
    chains = [
        decode(Prepared(model), SOURCE, NPAD(inner(3), 3, Noise(0.3)), 8)
        for inner in (Sampling, SharedSampling)
    ]
    assert_same(*chains)


def test_invalid_logits_are_reported():
    model = Prepared(build(torch.float32))
    model.logits.weight.fill_(torch.nan)
    with pytest.raises(ModelError, match="returned NaN"):
        decode(model, SOURCE, SharedSampling(3), 8)
