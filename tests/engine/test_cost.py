"""Model calls are counted by those who make them, and counting changes nothing."""

from __future__ import annotations

import threading

import pytest

from attention_cases import SOURCE, build
from cases import EVERY, assert_same, by_name, counted, recurrent, summaries, watched
from npad import NPAD, Beam, Greedy, Noise, count_calls, decode, score
from npad.engine.cuda_graphs import Graph
from npad.models.cgru.fast import Prepared


def spied():
    """A model that offers nothing but the contract, and the number of rows of every step."""
    model, rows = recurrent(), []
    model.forced = None
    return watched(model, lambda state, tokens, perturb: rows.append(len(tokens))), rows


@pytest.mark.parametrize("decoder", **by_name(EVERY))
def test_calls_are_the_rows_that_went_through_a_step(decoder):
    model, rows = spied()
    _, calls = counted(decode, model, summaries(3), decoder, 7)
    assert calls.search + calls.rescoring == sum(rows)
    assert (calls.rescoring > 0) == isinstance(decoder, NPAD)


def test_scoring_counts_as_rescoring():
    model, rows = spied()
    _, calls = counted(score, model, summaries(2), [[[3, 4], [5]], [[2]]])
    assert (calls.search, calls.rescoring) == (0, sum(rows))
    assert rows


@pytest.mark.parametrize("decoder", [Greedy(), Beam(3), NPAD(Greedy(), 4, Noise(0.4))], ids=repr)
def test_counting_leaves_graphs_on(decoder, monkeypatch):
    """A replayed step counts as an eager one does, and a counted decoding replays."""
    monkeypatch.setattr(Prepared, "capturable", property(lambda self: True))
    monkeypatch.setattr("npad.engine.cuda_graphs.EAGER_CALLS", 1)
    model = Prepared(build())
    expected = decode(model, SOURCE, decoder, 8)
    counts = []
    for _ in range(4):
        found, calls = counted(decode, model, SOURCE, decoder, 8)
        assert_same(found, expected)
        counts.append((calls.search, calls.rescoring))
    assert len(set(counts)) == 1
    assert any(isinstance(entry, Graph) for entry in model._graphs.entries.values())


def test_nested_counters_both_count_and_threads_count_apart():
    model, source = recurrent(), summaries(2)
    with count_calls() as outer:
        with count_calls() as inner:
            decode(model, source, Greedy(), 5)
        thread = threading.Thread(target=decode, args=(model, source, Beam(3), 5))
        thread.start()
        thread.join()
    assert outer == inner
    assert outer.search > 0
