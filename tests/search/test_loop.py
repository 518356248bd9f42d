"""The search loop: what it does to states, and what it asks of memory."""

from __future__ import annotations

import pytest
import torch

from cases import Stateless, assert_same, counted, recurrent, summaries, watched
from npad import NPAD, Beam, BestOf, Greedy, Noise, Sampling, Special, decode
from npad.models.table import TableModel
from npad.schedules import Constant


class Counting(Stateless):
    """A model whose step counts its steps in the state that it is given."""

    def start(self, source):
        return torch.zeros(len(source), dtype=torch.long)

    def step(self, state, tokens, perturb=None):
        state += 1
        return torch.eye(6)[(state + 1) % 6] * 5, state


COUNTING = Counting(Special(6, 0, 6), None)


@pytest.mark.parametrize("decoder", [Greedy(), Sampling(1), Beam(1)], ids=repr)
def test_a_search_steps_a_copy_of_the_state_it_is_given(decoder):
    """Two searches from one state find the same, though steps write to their states."""
    (alone,) = decode(COUNTING, [0], decoder, 9)
    (both,) = decode(COUNTING, [0], BestOf((decoder, decoder)), 9)
    assert_same([both[:1], both[1:]], [alone, alone])


@pytest.mark.parametrize("inner", [Greedy(), Beam(2), Sampling(2)], ids=repr)
def test_a_sentence_goes_on_until_all_its_chains_are_done(inner):
    """A hypothesis without its end has all the tokens that were allowed."""
    model = recurrent(vocabulary=6, ends=2.0)
    found = decode(model, summaries(6), NPAD(inner, 5, Noise(1.5, Constant())), max_length=12)
    lengths = {len(one.tokens) for hypotheses in found for one in hypotheses if not one.finished}
    assert lengths <= {12}
    ended = {len(one.tokens) for hypotheses in found for one in hypotheses if one.finished}
    assert len(ended) > 2


@pytest.mark.parametrize("decoder", [Greedy(), Sampling(3)], ids=repr)
def test_a_row_that_has_ended_reads_the_end_token(decoder, monkeypatch):
    """Whatever the model makes of it, this is a token that every model can read."""
    monkeypatch.setattr("npad.search.loop.steps_between_checks", lambda device: 8)
    model, read = recurrent(vocabulary=5, ends=1.0), []
    watched(model, lambda state, tokens, perturb: read.append(tokens.tolist()))
    decode(model, summaries(4), decoder, 8)
    by_row = [list(tokens) for tokens in zip(*read[1:], strict=True)]
    ends = [tokens.index(model.special.eos) for tokens in by_row if model.special.eos in tokens]
    assert min(ends) < 4
    for tokens in by_row:
        if model.special.eos in tokens:
            end = tokens.index(model.special.eos)
            assert set(tokens[end:]) == {model.special.eos}


@pytest.mark.parametrize("every", [1, 3, 8])
def test_rows_count_until_the_host_looks(every, monkeypatch):
    """Two tokens and the end, all certain: the search stops when it is next looked at."""
    monkeypatch.setattr("npad.search.loop.steps_between_checks", lambda device: every)
    model = TableModel({0: {(1,) * n: [0.0, 1.0] for n in range(2)}})
    _, calls = counted(decode, model, [0, 0], Beam(4), 20)
    steps = -(-3 // every) * every
    assert calls.search == 2 * (1 + 4 * (steps - 1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_memory_is_asked_for_once_for_all_rows(dtype, monkeypatch):
    """Eight tensors of the size of the logits, for every row of every sentence."""
    asked = []
    monkeypatch.setattr("npad.search.loop.ensure_fits", lambda *how: asked.append(how))
    decode(recurrent(dtype=dtype, vocabulary=7), summaries(5, dtype), Beam(3), 6)
    assert asked == [(5 * 3, 8 * 7 * dtype.itemsize, torch.device("cpu"))]


def test_a_sentence_that_is_done_is_not_stepped_on():
    """One ends at once, the other after nine tokens: 2 rows, then 1 row in nine steps."""
    tables = {"short": {(): [1.0, 0.0]}, "long": {(1,) * n: [0.0, 1.0] for n in range(9)}}
    _, calls = counted(decode, TableModel(tables), ["short", "long"], Greedy(), 12)
    assert calls.search == 2 + 9
