"""The tensors between a search and its results."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from npad.hypotheses import Hypotheses, Hypothesis, join, join_groups
from npad.noise.noisy import rank_in_run

HYPOTHESIS = st.tuples(st.lists(st.integers(0, 2), max_size=3), st.booleans(), st.integers(-5, 0))
GROUPS = st.integers(1, 6).flatmap(
    lambda n: st.lists(st.lists(st.none() | HYPOTHESIS, min_size=n, max_size=n), min_size=1)
)


def build(groups) -> Hypotheses:
    """Candidates of (tokens, finished, log_prob); None is an empty place."""
    empty = ((), False, 0)
    rows = [[candidate or empty for candidate in group] for group in groups]
    lengths = [[len(tokens) for tokens, *_ in group] for group in rows]
    longest, shape = max(map(max, lengths)), (len(groups), len(groups[0]))
    padded = [[[*tokens, *[9] * (longest - len(tokens))] for tokens, *_ in group] for group in rows]
    exists = torch.tensor([[candidate is not None for candidate in group] for group in groups])
    return Hypotheses(
        tokens=torch.tensor(padded, dtype=torch.long).view(*shape, longest),
        lengths=torch.tensor(lengths).masked_fill(~exists, -1),
        finished=torch.tensor([[finished for _, finished, _ in group] for group in rows]),
        log_prob=torch.tensor([[float(log_prob) for *_, log_prob in group] for group in rows]),
        chain=torch.arange(shape[1]).expand(shape),
    )


@given(groups=GROUPS)
def test_distinct_keeps_the_first_of_each_and_counts(groups):
    merged, went = build(groups).distinct()
    rows = merged.to_lists()
    assert merged.lengths.shape == (len(groups), max(1, max(map(len, rows))))
    for g, group in enumerate(groups):
        places = {}  # of each output, in the order of their first
        for place, candidate in enumerate(group):
            if candidate:
                places.setdefault((tuple(candidate[0]), candidate[1]), []).append(place)
        outputs = [(hypothesis.tokens, hypothesis.finished) for hypothesis in rows[g]]
        assert outputs == list(places)
        assert [h.chain for h in rows[g]] == [places[output][0] for output in outputs]
        assert [h.count for h in rows[g]] == [len(places[output]) for output in outputs]
        for output, of_output in places.items():
            assert {outputs[went[g, place]] for place in of_output} == {output}


def test_outside_npad_a_hypothesis_is_of_chain_0_and_counts_once():
    (found,) = replace(build([[([1], True, -1), None]]), chain=None).to_lists()
    assert found == [Hypothesis((1,), -1.0, True, 0, None, None, 1)]


def test_a_pad_that_is_a_real_token_makes_no_two_the_same():
    """(1), (1, 9) and (1, 9, 9) differ, though the shorter ones are padded with 9."""
    merged, went = build(
        [[([1], True, -1), ([1, 9], True, -2), ([1, 9, 9], True, -3), ([1], True, -1)]]
    ).distinct()
    assert [one.tokens for one in merged.to_lists()[0]] == [(1,), (1, 9), (1, 9, 9)]
    assert went.tolist() == [[0, 1, 2, 0]]
    assert merged.count.tolist() == [[2, 1, 1]]


@pytest.mark.parametrize("dim", [0, 1])
def test_pieces_of_different_length_are_joined_with_padding(dim):
    short, long = build([[([1], True, -1)]]), build([[([2, 2, 2], True, -2)]])
    joined = join([short, long], pad=9, dim=dim)
    assert joined.tokens.flatten(0, 1).tolist() == [[1, 9, 9], [2, 2, 2]]


@given(groups=GROUPS)
def test_best_first_is_by_finished_then_score_and_ties_stay(groups):
    for group, found in zip(groups, build(groups).best_first().to_lists(), strict=True):
        expected = sorted((one for one in group if one), key=lambda one: (-one[1], -one[2]))
        assert [(list(one.tokens), one.finished, one.log_prob) for one in found] == expected


def test_pieces_go_back_in_order():
    first, second = build([[([1], True, -1)]]), build([[([2, 2], True, -2)], [([], True, -3)]])
    found = join_groups(
        [(torch.tensor([1]), first), (torch.tensor([2, 0]), second)], pad=9
    ).to_lists()
    assert [group[0].tokens for group in found] == [(), (1,), (2, 2)]


@given(runs=st.lists(st.integers(1, 4), min_size=1))
def test_rank_in_run(runs):
    group = torch.tensor([i % 3 for i, n in enumerate(runs) for _ in range(n)])
    assert rank_in_run(group).tolist() == [i for n in runs for i in range(n)]
