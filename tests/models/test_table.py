"""The exact model: what it says is what was written down."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given

from cases import tables
from npad import InvalidInput
from npad.models import toy
from npad.models.table import TableModel
from npad.testing import check_model


def total_probability(model, source, max_length):
    return sum(math.exp(output.log_prob) for output in model.outputs(source, max_length))


@given(model=tables())
def test_all_outputs_together_have_probability_one(model):
    for max_length in (1, 2, 9):
        assert total_probability(model, 0, max_length) == pytest.approx(1)
    for phrase in toy.PHRASES:
        assert total_probability(toy.model(), phrase, 20) == pytest.approx(1)


@given(model=tables())
def test_stepping_gives_the_written_rows(model):
    for history, row in model.tables[0].items():
        state = model.start([0])
        for token in (model.special.bos, *history):
            logits, state = model.step(state, torch.tensor([token]))
        assert logits[0].exp().tolist() == pytest.approx(row)


def test_a_history_that_is_not_listed_ends():
    model = TableModel({0: {(): [0.5, 0.5]}})
    state = model.start([0])
    for token in (model.special.bos, 1):
        logits, state = model.step(state, torch.tensor([token]))
    assert logits.exp().tolist() == [[1.0, 0.0]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
def test_table_models_keep_the_contract(dtype):
    check_model(TableModel.random(4, 3, sentences=3, dtype=dtype), [0, 1, 2])
    check_model(toy.model(), list(toy.PHRASES))


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ({}, "at least one source"),
        ({0: {}}, "at least the empty history"),
        ({0: {(1,): [0.5, 0.5]}}, r"tables\[0\] has no probabilities for the empty history \(\)"),
        ({0: {(): [0.5, 0.4]}}, r"tables\[0\]\[\(\)\] must be probabilities that add up to 1"),
        ({0: {(): [1.5, -0.5]}}, "must be probabilities that add up to 1"),
        ({0: {(): [math.nan, 1.0]}}, "must be probabilities that add up to 1"),
        (
            {0: {(): [0.5, 0.5], (1,): [1.0]}},
            r"tables\[0\]\[\(1,\)\] has 1 probabilities; all must have 2",
        ),
    ],
)
def test_wrong_tables_are_named(tables, message):
    with pytest.raises(InvalidInput, match=message):
        TableModel(tables)


def test_an_unknown_source_is_named():
    with pytest.raises(
        InvalidInput, match="toy has no table for 'hallo'; it has 'das ist mir wurst'"
    ):
        toy.model().start(["hallo"])
