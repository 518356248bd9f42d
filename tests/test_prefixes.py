"""Prefixes that hypotheses share are read once, and the scores are the same."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from npad import NPAD, Counted, Greedy, InvalidInput, Noise, decode, score
from npad.models.prepared import LOGITS, Prepared
from npad.prefixes import prefixes, spans
from test_attention import SOURCE, build


@given(st.integers(0, 2**31), st.integers(1, 3), st.integers(1, 6), st.integers(1, 5), st.integers(1, 3))
def test_every_hypothesis_goes_through_its_own_prefixes(seed, sentences, n, length, symbols):
    random = np.random.default_rng(seed)
    x, reads = random.integers(symbols, size=(sentences, n, length)), random.integers(length + 1, size=(sentences, n))
    before = np.zeros((sentences, n), dtype=int)
    for t, one in enumerate(prefixes(x, reads)):
        for s in range(sentences):
            begun = {i: tuple(x[s, i, : t + 1].tolist()) for i in range(n) if reads[s, i] > t}
            kinds = {int(one.which[s, i]): begin for i, begin in begun.items()}
            assert all(kinds[int(one.which[s, i])] == begin for i, begin in begun.items())  # one number, one prefix
            assert len(kinds) == len(set(begun.values())) <= one.first.shape[1]
            for k, begin in kinds.items():
                assert begun[int(one.first[s, k])] == begin
                assert int(one.parents[s, k]) == int(before[s, int(one.first[s, k])])
        before = one.which


@pytest.mark.parametrize("least", [1, 4, 100])
def test_a_plan_in_parts_is_the_plan(least, monkeypatch):
    plain = build()
    monkeypatch.setattr("npad.models.prepared.SENT", least)
    monkeypatch.setitem(LOGITS, "cpu", least)
    targets = [[[3, 4, 5, 6], [3, 4], [3, 4, 5], []]] * len(SOURCE)
    expected = [pytest.approx(one, abs=1e-12) for one in score(plain, SOURCE, targets)]
    assert score(Prepared(plain), SOURCE, targets) == expected


def test_there_may_be_many_sentences():
    x = np.random.default_rng(0).integers(3, size=(600, 4, 3))
    for one in prefixes(x, np.full((600, 4), 3)):
        assert one.which.max() < one.first.shape[1] <= 4


@given(st.lists(st.integers(1, 9), max_size=9), st.integers(1, 20))
def test_spans_are_all_there_is_and_never_too_large(sizes, most):
    found = list(spans(sizes, most))
    assert [size for _, some in found for size in sizes[some]] == sizes
    assert [before for before, _ in found] == [sum(sizes[: some.start]) for _, some in found]
    assert all(sum(sizes[some]) <= most or len(sizes[some]) == 1 for _, some in found)


def test_a_shared_prefix_is_read_once():
    plain = build()
    model = Counted(Prepared(plain))
    targets = [[[3, 4, 5, 6], [3, 4, 5, 7], [3, 4, 5]]] * len(SOURCE)
    scores = score(model, SOURCE, targets)
    assert scores == [pytest.approx(one, abs=1e-12) for one in score(plain, SOURCE, targets)]
    assert model.rescored == len(SOURCE) * (1 + 1 + 1 + 1 + 2)


def test_chains_that_agree_cost_one_to_judge():
    model = Counted(Prepared(build()))
    found = decode(model, SOURCE, NPAD(Greedy(), 8, Noise(0.01)), 8)
    assert model.rescored <= 2 * sum(max(len(one.tokens) + 1 for one in each) for each in found)


def test_a_symbol_that_is_none_is_refused():
    with pytest.raises(InvalidInput, match="symbol 99 is outside the vocabulary of"):
        score(Prepared(build()), SOURCE, [[[3, 99]]] * len(SOURCE))
