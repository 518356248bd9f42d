"""Units: divided and joined without loss; decoders that workers know."""

from __future__ import annotations

import pickle
from functools import reduce

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cases import EVERY, by_name
from npad import NPAD, Beam, Greedy, Hypothesis, InvalidInput, Translation
from npad.scale.units import Failed, Result, Task, Unit, candidates_of, chain_ranges, units_of
from npad.selectors import GNMTLength, Rerank

TASK = Task.of(NPAD(chains=7))


def translation(text: str, *others: str) -> Translation:
    alternatives = tuple(translation(other) for other in others)
    return Translation(text, -1.0, Hypothesis((), -1.0, True), "", alternatives)


def echo(unit: Unit) -> Result:
    """The result of a unit whose translations name their text and chains."""
    start, stop = unit.chains or (0, 1)
    outcomes = [
        translation(*(f"{text} {chain}" for chain in range(start, stop))) for text in unit.texts
    ]
    return Result(unit.first, tuple(outcomes), "model", len(unit.texts), 1)


def pieces(unit: Unit, depth: int) -> list[Unit]:
    halves = unit.halves() if depth else None
    return [unit] if halves is None else [p for half in halves for p in pieces(half, depth - 1)]


@given(st.integers(1, 6), st.integers(0, 5), st.sampled_from([None, (0, 1), (2, 7)]))
def test_the_halves_of_a_unit_join_to_the_whole(texts, depth, chains):
    unit = Unit(10, tuple(f"text {i}" for i in range(texts)), TASK, chains)
    parts = [echo(piece) for piece in pieces(unit, depth)]
    assert reduce(Result.joined, parts).outcomes == echo(unit).outcomes


def test_what_cannot_be_halved_is_one_text_and_one_chain():
    assert Unit(0, ("a",), TASK).halves() is None
    assert Unit(0, ("a",), TASK, (3, 4)).halves() is None
    first, second = Unit(0, ("a",), TASK, (3, 6)).halves()
    assert (first.chains, second.chains) == ((3, 4), (4, 6))


def test_a_text_that_failed_in_one_range_of_chains_failed():
    ok, failed = Result(4, (translation("a"),)), Result(4, (Failed("no memory"),))
    assert ok.joined(failed).outcomes == failed.joined(ok).outcomes == failed.outcomes


@given(st.integers(0, 30), st.integers(1, 9), st.integers(1, 7), st.integers(0, 5))
def test_units_are_all_texts_and_all_chains_once(texts, size, parts, first):
    units = list(units_of(map(str, range(texts)), TASK, size, parts, first))
    assert all(len(unit.texts) <= size for unit in units)
    seen = [
        (unit.first + i, text, chain)
        for unit in units
        for i, text in enumerate(unit.texts)
        for chain in range(*(unit.chains or (0, 7)))
    ]
    expected = [(first + i, str(i), chain) for i in range(texts) for chain in range(7)]
    assert sorted(seen) == sorted(expected)


def test_units_are_read_as_they_are_taken():
    texts = iter(range(100))
    units = units_of((str(text) for text in texts), TASK, 3)
    next(units)
    assert next(texts) == 3


@pytest.mark.parametrize("decoder", **by_name(EVERY))
def test_workers_know_every_decoder_by_its_text(decoder):
    task = pickle.loads(pickle.dumps(Task.of(decoder, max_length=9)))
    assert task.parse() == decoder


@pytest.mark.parametrize(
    "make",
    [
        lambda: Task.of(NPAD(selector=Rerank(lambda hypothesis: 0.0))),
        lambda: Task.of(3),
        lambda: Task.of(Greedy(), max_length=0),
        lambda: Task.of(Greedy(), max_rows=0),
        lambda: chain_ranges(Beam(5), 2),
        lambda: chain_ranges(NPAD(chains=3), 4),
        lambda: chain_ranges(NPAD(selector=GNMTLength(beta=0.1)), 2),
        lambda: list(units_of([], TASK, 0)),
    ],
)
def test_what_workers_cannot_run_is_refused(make):
    with pytest.raises(InvalidInput) as refused:
        make()
    assert "\n" not in str(refused.value)


def test_a_small_corpus_has_a_unit_for_every_worker():
    task = Task.of(NPAD(chains=50), max_rows=1000)
    assert task.unit_size(2) == 8 * 20
    assert task.unit_size(2, 10**6) == 8 * 20
    assert task.unit_size(4, 160) == 10
    assert task.unit_size(4, 3) == task.unit_size(4, 0) == 1


def test_candidates_are_equals():
    found = translation("a", "b")
    assert [candidate.text for candidate in candidates_of(found)] == ["a", "b"]
    assert all(not candidate.alternatives for candidate in candidates_of(found))
