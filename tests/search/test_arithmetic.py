"""Arithmetic sampling: every sample is one of the model, and together they spread evenly."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torch

from cases import assert_drawn, p_value
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
    assert_drawn(drawn, truth, draws)


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


def test_long_outputs_do_not_use_up_the_codes():
    """After 200 tokens of one bit each, the next ones are still drawn evenly."""
    rows = 2000
    streams = torch.arange(rows)[:, None] * 7919
    codes = one_uniform(streams)
    draws = CodeDraw(Sampling(1), streams, codes, torch.ones_like(codes))
    p = torch.full((rows, 1, 2), 0.5)
    for t in range(1, 201):
        drawn = draws._draw(p, torch.tensor([t]))
        if t in (1, 60, 120, 200):
            ones = int(drawn.sum())
            assert p_value([ones, rows - ones], [rows / 2, rows / 2]) > 1e-3, t


def test_rounding_of_the_model_does_not_add_up_over_long_outputs():
    """Another batch changes the last bits of float32 probabilities, and hardly ever a sample."""
    rows, length = 500, 60
    streams = torch.arange(rows)[:, None] * 7919
    generator = torch.Generator().manual_seed(0)
    drawn = []
    for rounding in (0.0, 1e-7):
        codes = one_uniform(streams)
        draws = CodeDraw(Sampling(1), streams, codes, torch.ones_like(codes))
        model = torch.Generator().manual_seed(1)
        tokens = []
        for t in range(1, length + 1):
            p = (2 * torch.randn(rows, 1, 30, generator=model)).softmax(-1)
            noise = torch.rand(p.shape, generator=generator) - 0.5
            tokens.append(draws._draw(p * (1 + rounding * noise), torch.tensor([t])))
        drawn.append(torch.cat(tokens, 1))
    assert int((drawn[0] != drawn[1]).any(1).sum()) <= rows // 100
