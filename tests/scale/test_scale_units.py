"""Units: divided and joined without loss; decoders that workers know."""

from __future__ import annotations

import pickle
from dataclasses import fields, replace
from functools import reduce
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import npad.scale
from cases import EVERY, by_name
from npad import NPAD, Beam, Greedy, InvalidInput
from npad.constraints import Choices
from npad.hypotheses import Hypothesis
from npad.scale import Decoding, Failed, Result, Unit
from npad.scale.distributed import Distributed
from npad.scale.units import (
    chain_ranges,
    is_near_tie,
    unit_size,
    units_of,
    without_alternatives,
)
from npad.scale.worker import ModelSpec, Worker
from npad.selectors import MBR, GNMTLength, MostProbable, Rerank, WithCut
from scale_cases import echo, made_of

DECODING = Decoding(NPAD(chains=7))


def pieces(unit: Unit, depth: int) -> list[Unit]:
    halves = unit.halves() if depth else None
    return [unit] if halves is None else [p for half in halves for p in pieces(half, depth - 1)]


@given(st.integers(1, 6), st.integers(0, 5), st.sampled_from([None, (0, 1), (2, 7)]))
def test_the_halves_of_a_unit_join_to_the_whole(texts, depth, chains):
    unit = Unit(10, tuple(f"text {i}" for i in range(texts)), DECODING, chains)
    parts = [echo(piece) for piece in pieces(unit, depth)]
    assert reduce(Result.joined, parts).outcomes == echo(unit).outcomes
    assert Unit(0, ("a",), DECODING, chains).halves() is None


@pytest.mark.parametrize(("texts", "sizes"), [(2, (1, 1)), (5, (2, 3)), (8, (4, 4))])
def test_halves_have_half_the_texts_each(texts, sizes):
    unit = Unit(10, tuple(map(str, range(texts))), DECODING, (2, 7), alternatives=3)
    first, second = unit.halves()
    assert (len(first.texts), len(second.texts)) == sizes
    assert (first.first, second.first) == (10, 10 + sizes[0])
    assert replace(first, texts=unit.texts) == unit
    assert replace(second, first=10, texts=unit.texts) == unit


def test_joined_results_have_the_sums_of_their_figures():
    first = Result(3, (made_of("a"),), "", 1, 20, 300, False)
    second = Result(4, (made_of("b"), Failed("c")), "model", 4, 50, 600, True)
    outcomes = (*first.outcomes, *second.outcomes)
    assert first.joined(second) == Result(3, outcomes, "model", 5, 70, 900, True)
    assert first.joined(first).halved is False
    assert Result(3, (), "one").joined(second).model == "one"
    assert Result(3, ()) == Result(3, (), "", 0, 0, 0, False)
    assert Unit(7, ("a", "b"), DECODING).failed("no") == Result(7, (Failed("no"),) * 2)


def test_ranges_of_chains_are_of_about_equal_size():
    assert chain_ranges(NPAD(chains=7), 1) == [None]
    assert chain_ranges(NPAD(chains=7), 3) == [(0, 2), (2, 4), (4, 7)]
    assert chain_ranges(NPAD(chains=3), 3) == [(0, 1), (1, 2), (2, 3)]


@pytest.mark.parametrize(("kept", "left"), [(None, "bc"), (2, "bc"), (1, "b"), (0, "")])
def test_so_many_alternatives_are_kept(kept, left):
    outcome = without_alternatives(made_of("a", "b", "c"), kept)
    assert "".join(other.text for other in outcome.alternatives) == left
    assert without_alternatives(Failed("no"), kept) == Failed("no")


def test_a_text_that_failed_in_one_range_of_chains_failed():
    ok, failed = Result(4, (made_of("a"),)), Result(4, (Failed("no memory"),))
    for parts in ([ok, failed], [failed, ok]):
        merged = parts[0].merged(parts[1:], DECODING, None)
        assert merged.outcomes == failed.outcomes


@given(st.integers(0, 30), st.integers(1, 9), st.integers(1, 7), st.integers(0, 5))
def test_units_are_all_texts_and_all_chains_once(texts, size, parts, first):
    units = list(units_of(map(str, range(texts)), DECODING, size, parts, first))
    assert all(len(unit.texts) <= size for unit in units)
    seen = [
        (unit.first + i, text, chain)
        for unit in units
        for i, text in enumerate(unit.texts)
        for chain in range(*(unit.chains or (0, 7)))
    ]
    expected = [(first + i, str(i), chain) for i in range(texts) for chain in range(7)]
    assert sorted(seen) == sorted(expected)


@pytest.mark.parametrize("decoder", **by_name(EVERY))
def test_every_decoder_can_be_sent_to_workers(decoder):
    (unit,) = units_of(["a"], Decoding(decoder, max_length=9), 1)
    assert pickle.loads(pickle.dumps(unit)) == unit


@pytest.mark.parametrize("selector", [MBR(), WithCut(MBR())], ids=["finished", "cut"])
def test_cut_hypotheses_compete_on_workers_where_they_compete_at_the_driver(selector):
    unit = next(units_of(["a"], Decoding(NPAD(selector=selector)), 1, chain_parts=2))
    npad = unit.decoding.decoder
    assert isinstance(npad, NPAD)
    assert isinstance(npad.selector, WithCut) == isinstance(selector, WithCut)


@pytest.mark.parametrize(
    "make",
    [
        lambda: chain_ranges(NPAD(selector=Rerank(lambda hypothesis: 0.0)), 1),
        lambda: chain_ranges(Beam(5), 2),
        lambda: chain_ranges(NPAD(chains=3), 4),
        lambda: chain_ranges(NPAD(selector=GNMTLength(beta=0.1)), 2),
        lambda: list(units_of([], DECODING, 0)),
    ],
)
def test_work_that_workers_cannot_do_is_refused(make):
    with pytest.raises(InvalidInput) as refused:
        make()
    assert "\n" not in str(refused.value)


def test_a_small_corpus_has_a_unit_for_every_worker():
    decoding = Decoding(NPAD(chains=50), max_rows=1000)
    assert unit_size(decoding, 2) == 8 * 20
    assert unit_size(decoding, 2, 10**6) == 8 * 20
    assert unit_size(decoding, 4, 160) == 10
    assert unit_size(decoding, 4, 3) == unit_size(decoding, 4, 0) == 1


def test_near_ties_are_between_the_two_best_that_end_alike():
    best = made_of("a")
    near = replace(best, log_prob=-1.00005)
    cut = replace(near, hypothesis=replace(near.hypothesis, finished=False))
    others = [near, replace(near, log_prob=-1.001), cut]
    ties = [is_near_tie(replace(best, alternatives=(other,))) for other in others]
    assert ties == [True, False, False]
    assert not is_near_tie(best)
    assert not is_near_tie(Failed(""))


def test_chains_that_satisfy_no_constraint_leave_the_text_to_the_others():
    """As they do where all chains run together."""
    decoding = Decoding(NPAD(chains=2), 2, constraint=Choices(("Wie geht es Ihnen?",)))
    units = units_of(["How are you?"], decoding, 1, chain_parts=2)
    refused, _ = map(Worker(ModelSpec("en-de")).run, units)
    hypothesis = Hypothesis((5,), -1.0, True, chain=1, noisy_log_prob=-1.0)
    found = Result(0, (replace(made_of("Ja."), hypothesis=hypothesis),))
    broken = Result(0, (Failed("a GPU fell off the bus"),))
    for first, second in permutations([refused, found]):
        assert first.merged([second], decoding, None).outcomes[0].text == "Ja."
    assert refused.merged([refused], decoding, None).outcomes == refused.outcomes
    assert found.merged([refused, broken], decoding, None).outcomes == broken.outcomes


def test_names_of_0_2_still_work_with_a_warning():
    with pytest.warns(DeprecationWarning, match=r"npad\.scale\.Engine is now npad\.scale\.Workers"):
        assert npad.scale.Engine is npad.scale.Workers
    with pytest.warns(DeprecationWarning, match=r"npad\.scale\.Task is now"):
        assert npad.scale.Task("npad(chains=4)", 9) == Decoding(NPAD(chains=4), 9)


@pytest.mark.parametrize(
    ("parts", "selector", "sent"),
    [
        (1, MBR(), MBR()),
        (2, MBR(), MostProbable()),
        (2, WithCut(), WithCut()),
        (3, WithCut(MBR()), WithCut()),
    ],
)
def test_of_divided_chains_the_driver_selects(parts, selector, sent):
    decoding = Decoding(NPAD(chains=7, selector=selector))
    units = list(units_of(["a", "b", "c"], decoding, 2, parts))
    assert len(units) == 2 * parts
    assert {unit.decoding.decoder.selector for unit in units} == {sent}  # type: ignore[attr-defined]


def test_chains_are_divided_without_a_confidence_of_the_whole():
    decoding = Decoding(NPAD(chains=4), min_confidence=50.0)
    assert len(list(units_of(["a"], decoding, 1, chain_parts=1))) == 1
    with pytest.raises(InvalidInput, match="does not go with chains that are divided"):
        list(units_of(["a"], decoding, 1, chain_parts=2))


@pytest.mark.parametrize("parts", [0, 5])
def test_parts_of_chains_are_one_at_least_and_as_many_as_chains_at_most(parts):
    with pytest.raises(InvalidInput, match=r"chain parts must be|need NPAD with at least 5 chains"):
        chain_ranges(NPAD(chains=4), parts)


def test_a_distributed_translator_needs_workers():
    translator = npad.load("toy")
    values = {field.name: getattr(translator, field.name) for field in fields(translator)}
    with pytest.raises(InvalidInput, match="Distributed needs workers; make it with"):
        list(Distributed(**values).run(["danke"], Decoding(Greedy())))
