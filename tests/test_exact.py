"""Exact search: the truth, with a certificate."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cases import key, recurrent, summaries, tables
from npad import NPAD, Beam, Counted, Exact, GNMTLength, InvalidInput, LengthNormalised, decode
from npad.models.table import TableModel


@given(model=tables(max_depth=5), max_length=st.integers(1, 6), width=st.integers(1, 3))
def test_it_is_the_enumerated_argmax_with_a_certificate(model, max_length, width):
    found, truth = (
        decode(model, [0], Exact(beam=Beam(width)), max_length)[0],
        model.best(0, max_length),
    )
    assert len(found) == 1
    assert found[0].proven is True
    assert found[0].finished == truth.finished
    assert found[0].log_prob == pytest.approx(truth.log_prob, abs=1e-9)


@given(model=tables(max_depth=5), budget=st.integers(1, 60))
def test_a_small_budget_is_kept_and_admitted(model, budget):
    counted, beam = Counted(model), Counted(model)
    found = decode(counted, [0], Exact(budget, Beam(1)), 6)[0][0]
    answer = decode(beam, [0], Beam(1), 6)[0][0]
    assert counted.calls <= budget + beam.calls
    assert key(found) >= key(answer)


def test_what_is_proven_within_a_small_budget_is_the_optimum():
    """With some budgets there is a proof, with others none; a proven output is the optimum."""
    proven = []
    for seed in range(60):
        model = TableModel.random(4, 4, seed, dtype=torch.float64)
        found = decode(model, [0], Exact(1 + seed % 12, Beam(1)), 6)[0][0]
        proven.append(found.proven)
        assert not found.proven or found.log_prob == pytest.approx(
            model.best(0, 6).log_prob, abs=1e-9
        )
    assert {True, False} == set(proven)


def test_an_unproven_answer_says_so():
    model = TableModel(
        {0: {(): [0.3, 0.4, 0.3], (1,): [0.1, 0.5, 0.4], (2,): [0.9, 0.05, 0.05]}},
        dtype=torch.float64,
    )
    assert (
        decode(model, [0], Exact(budget=1, beam=Beam(1)), 8)[0][0].proven is False
    )  # there is more to try than that
    assert decode(model, [0], Exact(), 8)[0][0].proven is True


def test_batches_and_networks():
    model, source = recurrent(vocabulary=5), summaries(4)
    found = decode(model, source, Exact(50_000), max_length=7)
    wide = decode(model, source, Beam(2000), max_length=7)
    for one, other in zip(found, wide, strict=True):
        assert one[0].proven
        assert one[0].log_prob >= other[0].log_prob - 1e-9


@pytest.mark.parametrize(
    "selector", [LengthNormalised(1.0), GNMTLength(0.6)], ids=["normalised", "gnmt"]
)
def test_it_refuses_length_normalised_selection(selector):
    with pytest.raises(InvalidInput, match="Exact proves the most probable hypothesis"):
        NPAD(Exact(), selector=selector)
