"""Exact search: the truth, with a certificate."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cases import Stateless, counted, key, tables, watched
from npad import Beam, Exact, Special, decode
from npad.errors import ModelError
from npad.models.table import TableModel


@given(model=tables(max_depth=5), max_length=st.integers(1, 6), width=st.integers(1, 3))
def test_exact_search_equals_the_enumerated_argmax_with_a_certificate(model, max_length, width):
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
    found, calls = counted(decode, model, [0], Exact(budget, Beam(1)), 6)
    answer, of_beam = counted(decode, model, [0], Beam(1), 6)
    assert calls.search <= budget + of_beam.search
    assert key(found[0][0]) >= key(answer[0][0])


def test_outputs_proven_within_a_small_budget_are_optimal():
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


@pytest.mark.parametrize(
    ("after_two", "calls"), [([0.0, 0.5, 0.5], 1 + 2 + 2), ([0.5, 0.5, 0.0], 1 + 2)]
)
def test_a_prefix_that_can_only_equal_the_best_is_not_read(after_two, calls):
    """Greedy search ends at 1/8. An output of 1/4 begins with 2; then (1, 1) at 1/4 cannot win."""
    table = {
        (): [0.0, 0.5, 0.5],
        (1,): [0.25, 0.5, 0.25],
        (1, 1): [0.5, 0.25, 0.25],
        (2,): after_two,
        (2, 1): [1.0, 0.0, 0.0],
        (2, 2): [1.0, 0.0, 0.0],
    }
    model = TableModel({0: table}, dtype=torch.float64)
    greedy, of_greedy = counted(decode, model, [0], Beam(1), 8)
    assert greedy[0][0].log_prob == pytest.approx(math.log(1 / 8))
    ((found,),), of_exact = counted(decode, model, [0], Exact(beam=Beam(1)), 8)
    assert (found.proven, found.log_prob) == (True, pytest.approx(math.log(1 / 4)))
    assert of_exact.search - of_greedy.search == calls


def test_its_budget_is_what_the_proof_takes():
    for seed in range(20):
        model = TableModel.random(4, 4, seed, dtype=torch.float64)
        ((found,),), whole = counted(decode, model, [0], Exact(beam=Beam(1)), 6)
        needed = whole.search - counted(decode, model, [0], Beam(1), 6)[1].search
        assert decode(model, [0], Exact(needed, Beam(1)), 6)[0] == [found]
        if needed > 1:
            assert not decode(model, [0], Exact(needed - 1, Beam(1)), 6)[0][0].proven


def test_exact_search_reads_at_most_sixteen_prefixes_at_a_time():
    """So its `rows` promise. Greedy search ends at 0.1/39; 39 prefixes of 1/39 are worth a look."""
    table = {(i,): [0.5] + [0.5 / 39] * 39 for i in range(2, 40)}
    table |= {(): [0.0] + [1 / 39] * 39, (1,): [0.1] + [0.9 / 39] * 39}
    model, rows = TableModel({0: table}, dtype=torch.float64), []
    watched(model, lambda state, tokens, perturb: rows.append(len(tokens)))
    (found,) = decode(model, [0], Exact(beam=Beam(1)), 3)[0]
    assert found.log_prob == pytest.approx(model.best(0, 3).log_prob, abs=1e-9)
    assert max(rows) == 16 == Exact(beam=Beam(1)).rows


def test_where_nothing_can_end_it_is_the_best_of_what_is_cut():
    """Greedy search is cut at (1, 1) with 0.3; the most probable two tokens are (2, 1), 0.4."""
    table = {(): [0.0, 0.6, 0.4], (1,): [0.0, 0.5, 0.5], (2,): [0.0, 1.0, 0.0]}
    model = TableModel({0: table}, dtype=torch.float64)
    (found,) = decode(model, [0], Exact(beam=Beam(1)), 2)[0]
    assert (found.tokens, found.finished, found.proven) == ((2, 1), False, True)
    assert found.log_prob == pytest.approx(math.log(0.4))


def test_logits_that_only_it_meets_must_be_a_distribution_too():
    """Greedy search follows token 1; exact search reads 2 as well, and finds NaN."""
    after = torch.tensor([[1.0, 0, 0], [0.2, 0.4, 0.4], [math.nan] * 3, [0, 0.6, 0.4]])
    model = Stateless(Special(3, 0, 3), lambda tokens: after[tokens].log())
    assert decode(model, [0], Beam(1), 2)
    with pytest.raises(ModelError, match=r"Stateless.step returned NaN, .* by step 2"):
        decode(model, [0], Exact(beam=Beam(1)), 2)


def test_of_equals_the_beams_output_stays():
    """Greedy search ends at 1/8 with (1); so would (2) and (3), which are read after it."""
    table = {(): [0.0, 0.5, 0.25, 0.25], (1,): [0.25] * 4}
    table |= {(i,): [0.5, 0.5, 0.0, 0.0] for i in (2, 3)}
    model = TableModel({0: table}, dtype=torch.float64)
    for width in (1, 2, 3):
        (beam,), (exact,) = (
            decode(model, [0], decoder, 8)[0] for decoder in (Beam(width), Exact(beam=Beam(width)))
        )
        assert (exact.tokens, exact.proven) == (beam.tokens, True)
