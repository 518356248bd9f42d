"""The order in which hypotheses cut at max_length compete with the finished ones."""

from __future__ import annotations

import math

import pytest

from cases import recurrent, summaries
from npad import (
    MBR,
    NPAD,
    Beam,
    Exact,
    Greedy,
    InvalidInput,
    LengthNormalised,
    Noise,
    Sampling,
    decode,
)
from npad.hypotheses import Hypotheses
from npad.models.table import TableModel
from npad.selectors import GNMTLength, WithCut

# The first token 1 (0.9) goes on without an end within three tokens; the end at once has 0.1.
ENDLESS = TableModel({0: {(): [0.1, 0.9], (1,): [0.0, 1.0], (1, 1): [0.0, 1.0]}})


@pytest.mark.parametrize("inner", [Greedy(), Beam(2), Beam(2, "compete"), Beam(2, "pool")])
def test_a_cut_chain_beats_a_less_probable_end(inner):
    finished_first = decode(ENDLESS, [0], NPAD(inner, 20, Noise(3.0)), 2)[0]
    competing = decode(ENDLESS, [0], NPAD(inner, 20, Noise(3.0), selector=WithCut()), 2)[0]
    assert (finished_first[0].tokens, finished_first[0].finished) == ((), True)
    assert (competing[0].tokens, competing[0].finished) == ((1, 1), False)
    assert competing[0].log_prob == pytest.approx(math.log(0.9))


def test_all_candidates_include_the_cut_ones():
    decoder = NPAD(Beam(2), 1, Noise(0.0), candidates="all")
    assert [one.finished for one in decode(ENDLESS, [0], decoder, 2)[0]] == [True]
    competing = NPAD(Beam(2), 1, Noise(0.0), candidates="all", selector=WithCut())
    assert [one.finished for one in decode(ENDLESS, [0], competing, 2)[0]] == [False, True]


@pytest.mark.parametrize(
    ("inner", "most"), [(Beam(4), 1), (Beam(4, nbest=2), 2), (Sampling(4), 4)], ids=repr
)
def test_a_chain_hands_over_as_many_as_its_decoder_returns(inner, most):
    decoder = NPAD(inner, 1, Noise(0.0), selector=WithCut())
    found = decode(recurrent(), summaries(3), decoder, 4)
    assert max(map(len, found)) == most


@pytest.mark.parametrize("selector", [LengthNormalised(), GNMTLength(), MBR()])
def test_any_selector_can_let_cut_ones_compete(selector):
    """The scores are those of the selector, without regard to the end."""
    model, source = recurrent(vocabulary=7), summaries(4)
    decoder = NPAD(Beam(3), 4, Noise(0.5), candidates="all", selector=WithCut(selector))
    for hypotheses in decode(model, source, decoder, max_length=4):
        candidates = Hypotheses.from_list(hypotheses)
        scores = selector(candidates)[0].tolist()
        assert scores == pytest.approx(sorted(scores, reverse=True))


def test_equals_keep_the_order_of_log_prob_whether_cut_or_not():
    alike = WithCut(lambda candidates: candidates.log_prob * 0)
    decoder = NPAD(Beam(2), 1, Noise(0.0), candidates="all", selector=alike)
    assert [one.finished for one in decode(ENDLESS, [0], decoder, 2)[0]] == [False, True]


def test_with_cut_has_the_needs_and_limits_of_its_selector():
    assert WithCut(GNMTLength(0.6, beta=0.2)).needs_attention
    assert not WithCut().needs_attention
    with pytest.raises(InvalidInput, match="not the best by LengthNormalised"):
        NPAD(Exact(), selector=WithCut(LengthNormalised()))
    with pytest.raises(InvalidInput, match="selector must be a function of the candidates"):
        WithCut(3)
