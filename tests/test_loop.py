"""The search loop: what it does to states, and what it asks of memory."""

from __future__ import annotations

import pytest
import torch

from cases import assert_same, recurrent, summaries
from npad import NPAD, Beam, BestOf, Constant, Greedy, Noise, Sampling, Special, decode


class Counting:
    """A model whose step counts its steps in the state that it is given."""

    special, sites = Special(6, 0, 6), {}

    def start(self, source):
        return torch.zeros(len(source), dtype=torch.long)

    def step(self, state, tokens, perturb=None):
        state += 1
        return torch.eye(6)[(state + 1) % 6] * 5, state

    def select(self, state, rows):
        return state[rows]


@pytest.mark.parametrize("decoder", [Greedy(), Sampling(1), Beam(1)], ids=repr)
def test_a_search_steps_a_copy_of_the_state_it_is_given(decoder):
    """Two searches from one state find the same, though steps write to their states."""
    (alone,) = decode(Counting(), [0], decoder, 9)
    (both,) = decode(Counting(), [0], BestOf((decoder, decoder)), 9)
    assert_same([both[:1], both[1:]], [alone, alone])


@pytest.mark.parametrize("inner", [Greedy(), Beam(2), Sampling(2)], ids=repr)
def test_a_sentence_goes_on_until_all_its_chains_are_done(inner):
    """A hypothesis without its end has all the tokens that were allowed."""
    model = recurrent(vocabulary=6)
    with torch.no_grad():
        model.logits.bias[model.special.eos] += 2.0
    found = decode(model, summaries(6), NPAD(inner, 5, Noise(1.5, Constant())), max_length=12)
    lengths = {len(one.tokens) for hypotheses in found for one in hypotheses if not one.finished}
    assert lengths <= {12}
    ended = {len(one.tokens) for hypotheses in found for one in hypotheses if one.finished}
    assert len(ended) > 5
