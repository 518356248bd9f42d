"""Arithmetic sampling: every sample is one of the model, and together they spread evenly."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torch

from cases import p_value, recurrent, summaries
from npad import Arithmetic, Sampling, decode
from npad.models.table import TableModel
from npad.noise.random import one_uniform
from npad.search.arithmetic import CodeDraw, van_der_corput

CPU = torch.device("cpu")


def test_the_codes_are_evenly_spaced_and_extend_without_moving():
    assert van_der_corput(8, CPU).tolist() == [0, 0.5, 0.25, 0.75, 0.125, 0.625, 0.375, 0.875]
    assert van_der_corput(5, CPU).tolist() == van_der_corput(50, CPU).tolist()[:5]
    assert sorted(van_der_corput(64, CPU).tolist()) == [i / 64 for i in range(64)]


@pytest.mark.parametrize("place", [0, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
def test_each_sample_has_the_models_distribution(place, dtype):
    """Over many sentences of the same table, keyed apart; the sample at one place of the draws."""
    draws = 3000
    model = TableModel.random(3, 3, seed=place, dtype=dtype)
    truth = {output.tokens: math.exp(output.log_prob) for output in model.outputs(0, 10)}
    fewer, more = (
        decode(model, [0] * draws, Arithmetic(samples, seed=7), 10, ids=range(draws))
        for samples in (place + 1, place + 2)
    )
    drawn = Counter()  # the last of the draws: what two sets of samples differ by
    for some, all_ in zip(fewer, more, strict=True):
        last = Counter(h.tokens for h in all_) - Counter(h.tokens for h in some)
        assert sum(last.values()) == 1
        drawn += last
    common = [tokens for tokens, p in truth.items() if p * draws > 8]
    observed, expected = [drawn[t] for t in common], [truth[t] * draws for t in common]
    assert p_value([*observed, draws - sum(observed)], [*expected, draws - sum(expected)]) > 1e-3


def test_every_output_is_drawn_as_often_as_its_probability_says():
    """Intervals of [0, 1) hold n·p of n = 64 evenly spaced codes, up to two at their ends."""
    model = TableModel.random(3, 3, seed=1, dtype=torch.float64)
    for found in decode(model, [0] * 20, Arithmetic(64), 10, ids=range(20)):
        drawn = Counter(h.tokens for h in found)
        for output in model.outputs(0, 10):
            assert abs(drawn[output.tokens] - 64 * math.exp(output.log_prob)) < 2
    plain = [Counter(h.tokens for h in hs) for hs in decode(model, [0] * 20, Sampling(64), 10)]
    worst = max(
        abs(c[o.tokens] - 64 * math.exp(o.log_prob)) for c in plain for o in model.outputs(0, 10)
    )
    assert worst > 4  # which independent samples do not do


def test_fewer_samples_are_the_first_of_more():
    model, source = recurrent(scale=1.0, vocabulary=30), summaries(4)
    few, many = (decode(model, source, Arithmetic(n), 12) for n in (10, 50))
    for a, b in zip(few, many, strict=True):
        assert Counter(h.tokens for h in a) <= Counter(h.tokens for h in b)


def test_long_outputs_do_not_use_up_the_codes():
    """After 200 tokens of one bit each, the next ones are still drawn evenly."""
    rows = 2000
    streams = torch.arange(rows)[:, None] * 7919
    draws = CodeDraw(Sampling(1), streams, one_uniform(streams))
    p = torch.full((rows, 1, 2), 0.5)
    for t in range(1, 201):
        drawn = draws._draw(p, torch.tensor([t]))
        if t in (1, 60, 120, 200):
            ones = int(drawn.sum())
            assert p_value([ones, rows - ones], [rows / 2, rows / 2]) > 1e-3, t


def test_seeds_and_sentences_are_shifted_apart():
    model, source = recurrent(scale=0.1, vocabulary=50), summaries(1).expand(2, -1)
    (first, second), (other, _) = (decode(model, source, Arithmetic(4, seed=s), 9) for s in (0, 1))
    assert len({tuple(h.tokens for h in found) for found in (first, second, other)}) == 3
