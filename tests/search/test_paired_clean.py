"""Clean rows stepped beside noisy ones give the scores that re-scoring gives."""

from __future__ import annotations

import pytest

from attention_cases import SOURCE, build
from cases import NOISY, assert_same, by_name, recurrent, summaries
from npad import NPAD, Beam, Greedy, LengthNormalised, Noise, decode
from npad.engine.cost import count_calls
from npad.models.low_precision import LowPrecision
from npad.rescoring import strategies
from npad.search import chains
from npad.search import paired as pairs
from npad.selectors import GNMTLength

PAIRED = {name: decoder for name, decoder in NOISY.items() if "tight" not in name}
PAIRED = {name: decoder for name, decoder in PAIRED.items() if "exact" not in name}
PAIRED["length-normalised"] = NPAD(Beam(3), 4, Noise(0.5), selector=LengthNormalised())


@pytest.fixture
def paired(monkeypatch):
    """Models whose rows are paired, as if their steps could be captured; nothing is re-scored."""

    def make(model, read=None):
        model.capturable = True
        monkeypatch.setattr(chains, "graphs_of", no_graphs)
        monkeypatch.setattr("npad.search.loop.graphs_of", no_graphs)
        monkeypatch.setattr(strategies, "read_rectangle", read)
        monkeypatch.setattr(pairs, "MAX_PAIRED_ROWS", 10**6)
        return model

    return make


class no_graphs:  # noqa: N801
    def __init__(self, model, capabilities=None): ...
    def __enter__(self): ...
    def __exit__(self, *error): ...


@pytest.fixture
def attached(monkeypatch):
    """The arguments of every call that pairs rows."""
    calls, attach = [], chains.noisy_pairs
    monkeypatch.setattr(chains, "noisy_pairs", lambda *rows: calls.append(rows) or attach(*rows))
    return calls


@pytest.mark.parametrize("decoder", **by_name(PAIRED))
def test_clean_pairs_score_as_re_scoring_does(decoder, paired):
    for model, source in ((build(), SOURCE), (recurrent(), summaries(4))):
        expected = decode(model, source, decoder, 9)
        kept = strategies.read_rectangle
        assert_same(decode(paired(model), source, decoder, 9), expected)
        strategies.read_rectangle = kept


def test_rows_are_paired_where_steps_are_captured_and_rows_few(paired, attached, monkeypatch):
    decoder = NPAD(Greedy(), 5, Noise(0.5))
    decode(build(), SOURCE, decoder, 9)
    assert not attached
    model = paired(build(), strategies.read_rectangle)
    decode(model, SOURCE, decoder, 9)
    assert attached
    attached.clear()
    monkeypatch.setattr(pairs, "MAX_PAIRED_ROWS", 5 * len(SOURCE) - 1)
    decode(model, SOURCE, decoder, 9)
    assert not attached


def test_a_clean_pair_counts_as_re_scoring(paired):
    decoder = NPAD(Greedy(), 5, Noise(0.5))
    with count_calls() as calls:
        decode(paired(build()), SOURCE, decoder, 9)
    assert calls.search == calls.rescoring > 0


def test_memory_is_asked_for_pairs(paired, monkeypatch):
    asked = []
    monkeypatch.setattr("npad.search.loop.ensure_fits", lambda rows, *_: asked.append(rows))
    decode(paired(build()), SOURCE, NPAD(Beam(3), 5, Noise(0.5)), 9)
    assert asked == [2 * len(SOURCE) * 5 * 3]


@pytest.mark.parametrize("clean_chain", [True, False])
def test_chains_in_low_precision_have_no_pairs(clean_chain, paired):
    """A pair of two such rows would be in low precision as well, and could not judge."""
    rescored, read = [], strategies.read_rectangle

    def spied(model, *rest):
        rescored.append(model)
        return read(model, *rest)

    low = LowPrecision(paired(build().float(), spied))
    decode(low, SOURCE, NPAD(Greedy(), 4, Noise(0.5), clean_chain=clean_chain), 9)
    assert {*map(id, rescored)} == {id(low)}


def test_rows_are_not_paired_where_re_scoring_comes_anyway(paired, attached):
    """Coverage needs the attention of each hypothesis, which only re-scoring collects."""
    model = paired(build(), strategies.read_rectangle)
    decode(model, SOURCE, NPAD(Greedy(), 4, Noise(0.5), selector=GNMTLength(0.6, 0.2)), 9)
    assert not attached
