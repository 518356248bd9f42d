"""Diverse decoding: the penalty ranks, and does nothing else."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cases import assert_same, tables
from npad import Beam, Diverse, decode
from npad.models.table import TableModel
from plain import plain_beam


@given(model=tables(), width=st.integers(1, 6), max_length=st.integers(1, 5))
def test_without_a_penalty_it_is_beam_search(model, width, max_length):
    diverse, beam = Diverse(width, eta=0, nbest=width), Beam(width, nbest=width)
    assert_same(decode(model, [0], diverse, max_length), decode(model, [0], beam, max_length))


@given(
    model=tables(), width=st.integers(1, 6), eta=st.floats(0.01, 3), max_length=st.integers(1, 5)
)
def test_diverse_decoding_equals_its_plain_implementation(model, width, eta, max_length):
    expected = plain_beam(
        model, width, "shrink", width, max_length, penalty=lambda rank: eta * rank
    )
    found = decode(model, [0], Diverse(width, eta, nbest=width), max_length)[0]
    assert [one.tokens for one in found] == [tokens for tokens, _, _ in expected]
    assert [one.log_prob for one in found] == pytest.approx(
        [log_prob for _, log_prob, _ in expected], abs=1e-9
    )


# (1) has the two best children, 0.6·0.5 and 0.6·0.4; the best child of (2) has 0.4·0.55 = 0.22.
TABLE = {(): [0.0, 0.6, 0.4], (1,): [0.1, 0.5, 0.4], (2,): [0.2, 0.25, 0.55]}


def test_the_ranking_by_hand():
    """For η > ln(0.24/0.22) = 0.087, ln 0.24 − 2η < ln 0.22 − η: the child of (2) wins."""
    model = TableModel({0: TABLE}, dtype=torch.float64)

    def kept(eta):
        return {one.tokens for one in decode(model, [0], Diverse(2, eta, nbest=2), max_length=3)[0]}

    edge = math.log(0.24 / 0.22)
    assert kept(0) == kept(0.99 * edge) == {(1, 1), (1, 2)}
    assert kept(1.01 * edge) == {(1, 1), (2, 2)}


def test_the_penalty_does_not_accumulate_and_scores_are_clean():
    """If η·k' accumulated, (2, 2), a second and then a first child, would fall behind by η."""
    table = TABLE | {
        (1, 1): [0.5, 0.5, 0.0],
        (2, 2): [0.69, 0.31, 0.0],
        (1, 1, 1): [1, 0, 0],
        (2, 2, 1): [1, 0, 0],
    }
    model = TableModel({0: table}, dtype=torch.float64)
    # Step 3: 0.30·0.5 = 0.15 (twice) and 0.22·0.69 = 0.152. All are first children, with equal
    # penalties: (2, 2) ends first. With η = 0.1 carried over, it would be 0.152·e^−0.1 = 0.137,
    # behind (1, 1).
    found = decode(model, [0], Diverse(2, eta=0.1, nbest=2), max_length=4)[0]
    assert [one.tokens for one in found] == [(2, 2), (1, 1)]
    assert [one.log_prob for one in found] == pytest.approx(
        [math.log(0.4 * 0.55 * 0.69), math.log(0.6 * 0.5 * 0.5)]
    )
