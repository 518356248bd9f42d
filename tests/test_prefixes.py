"""Prefixes that hypotheses share are read once, and the scores are the same."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from npad import NPAD, Counted, Greedy, InvalidInput, Noise, decode, score
from npad.models.prepared import Prepared
from npad.prefixes import prefixes
from test_attention import SOURCE, build


@given(st.integers(0, 2**31), st.integers(1, 3), st.integers(1, 6), st.integers(1, 5), st.integers(1, 3))
def test_every_hypothesis_goes_through_its_own_prefixes(seed, sentences, n, length, symbols):
    x = torch.randint(symbols, (sentences, n, length), generator=torch.Generator().manual_seed(seed))
    before = torch.zeros(sentences, n, dtype=torch.long)
    for t, one in enumerate(prefixes(x)):
        for s in range(sentences):
            begun = [tuple(row[: t + 1].tolist()) for row in x[s]]
            kinds = {int(k): begin for k, begin in zip(one.which[s], begun, strict=True)}
            assert [kinds[int(k)] for k in one.which[s]] == begun  # one number, one prefix
            assert len(kinds) == len(set(begun)) <= one.first.shape[1]
            for k, begin in kinds.items():
                assert begun[int(one.first[s, k])] == begin
                assert int(one.parents[s, k]) == int(before[s, int(one.first[s, k])])
        before = one.which


def test_a_shared_prefix_is_read_once():
    plain = build()
    model = Counted(Prepared(plain))
    targets = [[[3, 4, 5, 6], [3, 4, 5, 7], [3, 4, 5]]] * len(SOURCE)
    scores = score(model, SOURCE, targets)
    assert scores == [pytest.approx(one, abs=1e-12) for one in score(plain, SOURCE, targets)]
    assert model.rescored == len(SOURCE) * (1 + 1 + 1 + 1 + 3)


def test_chains_that_agree_cost_one_to_judge():
    model = Counted(Prepared(build()))
    found = decode(model, SOURCE, NPAD(Greedy(), 8, Noise(0.01)), 8)
    assert model.rescored <= 2 * sum(max(len(one.tokens) + 1 for one in each) for each in found)


def test_a_symbol_that_is_none_is_refused():
    with pytest.raises(InvalidInput, match="symbol 99 is outside the vocabulary of"):
        score(Prepared(build()), SOURCE, [[[3, 99]]] * len(SOURCE))
