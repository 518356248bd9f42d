"""Selectors for every decoder that has candidates."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import npad
from cases import recurrent, summaries, tables
from npad import (
    MBR,
    NPAD,
    Beam,
    BestOf,
    Diverse,
    Exact,
    Greedy,
    InvalidInput,
    LengthNormalised,
    MBRDecoding,
    MostProbable,
    Noise,
    Sampling,
    Selected,
    decode,
)
from npad.search.selected import is_mbr_on_a_beam
from npad.selectors import GNMTLength, WithCut
from npad.specs import label

INNERS = [Beam(4), Beam(4, "pool"), Diverse(3, 0.5), Sampling(6), BestOf((Greedy(), Beam(3)))]
SELECTORS = [LengthNormalised(), GNMTLength(), MBR(), MostProbable()]


def outputs(found):
    return [[(one.tokens, one.finished, one.count) for one in each] for each in found]


@pytest.mark.parametrize("selector", [*SELECTORS, WithCut(LengthNormalised())], ids=label)
@pytest.mark.parametrize("inner", INNERS, ids=label)
def test_selected_equals_npad_with_only_the_clean_chain(inner, selector):
    """And all candidates: the same list, the same scores, without the re-scoring."""
    model, source = recurrent(), summaries(5)
    decoder = Selected(inner, selector)
    found = decode(model, source, decoder, max_length=7)
    alone = NPAD(inner, 1, Noise(0.0), candidates="all", selector=selector)
    expected = decode(model, source, alone, max_length=7)
    assert outputs(found) == outputs(expected)
    with npad.count_calls() as calls:
        decode(model, source, decoder, max_length=7)
    assert calls.rescoring == 0


@given(model=tables(max_vocabulary=3, max_depth=3), alpha=st.floats(0, 2))
def test_a_wide_beam_finds_the_best_by_normalised_length(model, alpha):
    """Of all finished outputs, enumerated."""
    found = decode(model, [0], Selected(Beam(81, "pool"), LengthNormalised(alpha)), 4)[0][0]
    scores = [
        output.log_prob / (len(output.tokens) + 1) ** alpha
        for output in model.outputs(0, 4)
        if output.finished
    ]
    assert found.log_prob / (len(found.tokens) + found.finished) ** alpha == pytest.approx(
        max(scores), abs=1e-6
    )


@given(model=tables(), max_length=st.integers(1, 4))
def test_cut_outputs_compete_in_a_beam(model, max_length):
    """A wide one finds the most probable of all outputs, cut ones included."""
    best = decode(model, [0], Selected(Beam(300), WithCut()), max_length)[0][0]
    assert best.log_prob == pytest.approx(
        max(output.log_prob for output in model.outputs(0, max_length)), abs=1e-9
    )


def test_attention_is_read_where_the_selector_needs_it():
    texts = ["Tom is studying at Harvard."]
    model = npad.load("en-de")
    selector = GNMTLength(0.6, beta=0.2)
    (found,) = model.translate(texts, Selected(Beam(4), selector))
    (expected,) = model.translate(texts, NPAD(Beam(4), 1, candidates="all", selector=selector))
    assert found.text == expected.text
    assert found.log_prob == pytest.approx(expected.log_prob, abs=1e-4)
    with pytest.raises(
        InvalidInput, match="a selector that reads attention ranks clean hypotheses"
    ):
        NPAD(Selected(Beam(4), selector))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((Greedy(),), "Greedy returns one hypothesis, so there is nothing to"),
        ((Exact(),), "Exact returns one hypothesis"),
        ((NPAD(),), "NPAD has a selector of its own"),
        ((Beam(5), "length-normalised"), "selector must be a function of the candidates"),
    ],
)
def test_decoders_without_candidates_are_refused(arguments, message):
    with pytest.raises(InvalidInput, match=message):
        Selected(*arguments)


@pytest.mark.parametrize(
    ("decoder", "recognised"),
    [
        (Selected(Beam(5), MBR()), True),
        (Selected(Diverse(5), WithCut(MBR())), True),
        (NPAD(Beam(5), 1, candidates="all", selector=MBR()), True),
        (Beam(5), False),
        (Selected(Beam(5), LengthNormalised()), False),
        (Selected(Sampling(), MBR()), False),
        (NPAD(Beam(5), 1, selector=MBR()), False),
        (NPAD(Beam(5), 10, candidates="all", selector=MBR()), False),
        (MBRDecoding(Beam(5), Sampling(50)), False),
    ],
    ids=label,
)
def test_mbr_on_one_beam_is_recognised(decoder, recognised):
    assert is_mbr_on_a_beam(decoder) is recognised


def test_the_command_warns_of_mbr_on_a_beam_in_one_line(npad_here):
    for decoder, warned in (("beam", 1), ("sampling", 0)):
        done = npad_here("translate", "-m", "toy", "-d", decoder, "--selector", "mbr", "na ja")
        lines = done.stderr.splitlines()
        assert len(lines) == warned
        assert all(line.startswith("npad: warning: MBR on one beam's list") for line in lines)
