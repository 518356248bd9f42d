"""Sampling draws from the distribution it says it draws from."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cases import assert_drawn, p_value, recurrent, summaries, tokens
from npad import Arithmetic, Sampling, decode
from npad.models.table import TableModel
from npad.search.sampling import Epsilon

DRAWS = 4000


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("seed", range(3))
def test_sampling_frequencies_match_the_exact_distribution(seed, dtype):
    model = TableModel.random(3, 3, seed=seed, dtype=dtype)
    truth = {output.tokens: math.exp(output.log_prob) for output in model.outputs(0, 10)}
    drawn = Counter(one.tokens for one in decode(model, [0], Sampling(DRAWS, seed=seed))[0])
    assert sum(drawn.values()) == DRAWS
    assert_drawn(drawn, truth, DRAWS)


ONE_STEP = [0.4, 0.3, 0.15, 0.1, 0.05]


@pytest.mark.parametrize(
    ("how", "truth"),
    [
        ({"temperature": 0.5}, [0.16, 0.09, 0.0225, 0.01, 0.0025]),
        ({"temperature": 2.0}, [math.sqrt(p) for p in ONE_STEP]),
        ({"top_k": 2}, [0.4, 0.3, 0, 0, 0]),
        ({"top_p": 0.6}, [0.4, 0.3, 0, 0, 0]),
        ({"top_p": 0.71}, [0.4, 0.3, 0.15, 0, 0]),
        (
            {"top_k": 4, "top_p": 0.75},
            [0.4, 0.3, 0.15, 0, 0],
        ),  # 0.7/0.95 < 0.75: the third is needed after the cut to 4
        ({"top_p": 1e-6}, [1, 0, 0, 0, 0]),
        ({"top_k": 99}, ONE_STEP),
        ({"epsilon": 0.12}, [0.4, 0.3, 0.15, 0, 0]),
        ({"epsilon": 0.2, "temperature": 0.5}, [0.16, 0.09, 0, 0, 0]),
        ({"epsilon": 0.5}, [1, 0, 0, 0, 0]),
        ({"epsilon": 0.07, "top_k": 3}, [0.4, 0.3, 0.15, 0, 0]),
    ],
    ids=str,
)
def test_temperature_and_cuts_by_hand(how, truth):
    model = TableModel({0: {(): ONE_STEP}}, dtype=torch.float64)
    decoder = (Epsilon if "epsilon" in how else Sampling)(DRAWS, **how)
    drawn = Counter(one.tokens for one in decode(model, [0], decoder, max_length=1)[0])
    counts = [drawn[()], *(drawn[(token,)] for token in range(1, 5))]
    assert [count > 0 for count in counts] == [p > 0 for p in truth]
    possible = [
        (count, p / sum(truth) * DRAWS) for count, p in zip(counts, truth, strict=True) if p > 0
    ]
    if len(possible) > 1:
        assert p_value(*map(list, zip(*possible, strict=True))) > 1e-3


def test_a_temperature_next_to_zero_takes_the_most_probable():
    for dtype in (torch.float32, torch.float64):
        model = TableModel({0: {(): [0.1, 0.5, 0.4]}}, dtype=dtype)
        for temperature in (1e-3, 1e-39, 1e-46, 5e-324):
            assert {one.tokens for one in decode(model, [0], Sampling(20, temperature), 1)[0]} == {
                (1,)
            }


def test_duplicates_are_kept():
    found = decode(TableModel({0: {(): [1.0, 0.0]}}), [0], Sampling(7))
    assert tokens(found) == [[()] * 7]


@pytest.mark.parametrize("kind", [Sampling, Arithmetic])
@given(seed=st.integers(0, 2**40), fewer=st.integers(1, 9))
def test_fewer_samples_are_a_prefix_of_more(kind, seed, fewer):
    """Of the draws, that is; they come back best first."""
    model = TableModel.random(4, 4, seed=1, dtype=torch.float64)
    some, all_ = (
        Counter(h.tokens for h in decode(model, [0], kind(n, seed=seed))[0]) for n in (fewer, 10)
    )
    assert some <= all_


@pytest.mark.parametrize("kind", [Sampling, Arithmetic])
def test_sentences_seeds_and_samples_draw_apart(kind):
    """Two sentences with the same source, and two seeds, see different draws."""
    model, source = recurrent(scale=0.1, vocabulary=50), summaries(1).expand(2, -1)
    drawn = [
        outputs
        for seed in (0, 1)
        for outputs in tokens(decode(model, source, kind(4, seed=seed), 9))
    ]
    assert len({tuple(outputs) for outputs in drawn}) == 4
    assert all(len(set(outputs)) == 4 for outputs in drawn)
