"""Beam search against plain Python, tables made by hand, and the enumerated optimum."""

from __future__ import annotations

import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cases import (
    Stateless,
    assert_same,
    best,
    counted,
    key,
    npad,
    recurrent,
    summaries,
    tables,
    tokens,
    watched,
    with_zeros,
)
from npad import NPAD, Beam, Greedy, Noise, Special, decode
from npad.models.table import TableModel
from plain import plain_beam

RULES = ["shrink", "compete", "pool"]


def assert_plain(beam, model, max_length):
    """A beam finds what its plain transcription finds, in the same order."""
    found = decode(model, [0], beam, max_length)[0]
    expected = plain_beam(model, beam.width, beam.finish, beam.nbest, max_length)
    assert [(one.tokens, one.finished) for one in found] == [
        (output, ended) for output, _, ended in expected
    ]
    assert [one.log_prob for one in found] == pytest.approx(
        [log_prob for _, log_prob, _ in expected], abs=1e-9
    )


@pytest.mark.parametrize("finish", RULES)
@given(model=tables(), width=st.integers(1, 7), max_length=st.integers(1, 5), data=st.data())
def test_beam_equals_its_plain_implementation(finish, model, width, max_length, data):
    nbest = data.draw(st.integers(1, width))
    assert_plain(Beam(width, finish, nbest), model, max_length)


@pytest.mark.parametrize("finish", RULES)
def test_beam_equals_its_plain_implementation_with_many_tokens(finish):
    """With more tokens than the width, one prefix's children may fill the beam, and end as well."""
    draw = random.Random(finish)
    for seed in range(300):
        model = TableModel.random(draw.randint(4, 8), draw.randint(2, 3), seed, dtype=torch.float64)
        model = with_zeros(model, seed) if seed % 2 else model
        width, max_length = draw.randint(1, 4), draw.randint(2, 4)
        nbest = draw.randint(1, width)
        assert_plain(Beam(width, finish, nbest), model, max_length)


@pytest.mark.parametrize("finish", RULES)
def test_equals_are_found_once_each_with_their_own_score(finish):
    """With ties and zeros no hypothesis comes twice, and scores are those of the table."""
    draw = random.Random(0)
    for _ in range(60):
        vocabulary = draw.randint(3, 40)
        model = TableModel(
            {0: {history: tied(draw, vocabulary) for history in [(), (1,), (2,), (1, 1), (2, 1)]}}
        )
        width = draw.randint(2, 9)
        found = decode(model, [0], Beam(width, finish, nbest=width), 3)[0]
        truth = {(one.tokens, one.finished): one.log_prob for one in model.outputs(0, 3)}
        assert len({one.tokens for one in found}) == len(found) == min(width, len(truth))
        assert [one.log_prob for one in found] == pytest.approx(
            [truth[one.tokens, one.finished] for one in found]
        )


def tied(draw: random.Random, vocabulary: int) -> list[float]:
    """A distribution with many ties: each token has weight 0, 1 or 2, and not all have 0."""
    weights = [draw.choice((0, 1, 1, 2, 2)) for _ in range(vocabulary)]
    weights[draw.randrange(vocabulary)] = 2
    return [weight / sum(weights) for weight in weights]


@pytest.mark.parametrize("finish", RULES)
@given(model=tables(), max_length=st.integers(1, 5))
def test_greedy_is_beam_of_one(finish, model, max_length):
    if (
        finish == "pool"
    ):  # its beam goes on past the end while it could still beat what is in the pool
        found = best(model, Beam(1, finish), max_length=max_length)
        assert key(found) >= key(best(model, Greedy(), max_length=max_length))
    else:
        assert_same(
            decode(model, [0], Beam(1, finish), max_length),
            decode(model, [0], Greedy(), max_length),
        )


@pytest.mark.parametrize("outer", [lambda inner: inner, npad], ids=["plain", "npad"])
def test_greedy_is_beam_of_one_for_a_network(outer):
    model, source = recurrent("lstm", layers=2), summaries(8)
    greedy, beam = (decode(model, source, outer(inner), 15) for inner in (Greedy(), Beam(1)))
    assert_same(greedy, beam)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_greedy_is_beam_of_one_among_equals(dtype):
    """Logits of few distinct values tie often: greedy search and a beam of one take the first."""

    class Tied(Stateless):
        def start(self, source):
            return torch.tensor(source)

        def step(self, state, tokens, perturb=None):
            state = (state * 31 + tokens + 7) % 1009
            grid = (state[:, None] * torch.arange(1, 41) % 1013) % 4
            return grid.to(dtype), state

    model, source = Tied(Special(40, 0, 40), None), list(range(200))
    model.sites = {"hidden": 1}
    for outer in (lambda inner: inner, lambda inner: NPAD(inner, chains=2, noise=Noise(0.0))):
        greedy, beam = (decode(model, source, outer(inner), 6) for inner in (Greedy(), Beam(1)))
        assert greedy == beam


def test_greedy_is_beam_of_one_however_small_the_difference():
    """Adding a gap of 1.2e-7 to a score of −20 in float32 loses it; the order must not be lost."""
    logits = torch.tensor([[0.0, 1.2e-7, -20.0]])
    model = Stateless(Special(3, 2, 3), lambda read: logits.repeat(len(read), 1))
    for decoder in (Greedy(), Beam(1)):
        assert tokens(decode(model, [0], decoder, max_length=60)) == [[(1,) * 60]]


# Two tables on which the rules differ. Tokens: 0 ends, 1 and 2 are words.
# "1 1" (0.44) loses to "1 2" (0.46·0.5) once a finished hypothesis has taken a slot.
SHRINK_LOSES = {
    (): [0.40, 0.35, 0.25],
    (1,): [0.0, 0.48, 0.52],
    (1, 2): [0.5, 0.25, 0.25],
    (1, 1): [1.0, 0.0, 0.0],
    (2,): [0.1, 0.45, 0.45],
}
# The empty output ends at 0.20; then (2, 1) 0.308, (1, 1) 0.225, (1, 2) 0.216.
ALL_PART = {
    (): [0.20, 0.45, 0.35],
    (1,): [0.02, 0.50, 0.48],
    (1, 1): [0.99, 0.01, 0.0],
    (1, 2): [0.98, 0.01, 0.01],
    (2,): [0.10, 0.88, 0.02],
    (2, 1): [0.60, 0.20, 0.20],
}


@pytest.mark.parametrize(
    ("table", "width", "expected"),
    [
        (
            SHRINK_LOSES,
            2,
            {
                "shrink": [(), (1, 2)],  # the empty output at 0.40 takes a place for good
                "pool": [(), (1, 1)],  # both prefixes stay live next to the pool
            },
        ),
        (
            ALL_PART,
            3,
            {
                "shrink": [(1, 1), (), (2, 1)],  # its place is lost for (1, 2)
                "compete": [(1, 1), (1, 2), (2, 1)],  # pushed out by the three
                "pool": [(1, 1), (1, 2), ()],  # safe in the pool, where it beats (2, 1), 0.185
            },
        ),
    ],
    ids=["shrink-loses", "all-part"],
)
def test_the_rules_by_hand(table, width, expected):
    model = TableModel({0: table}, dtype=torch.float64)
    for finish, outputs in expected.items():
        assert tokens(decode(model, [0], Beam(width, finish, nbest=width), 8)) == [outputs]


@pytest.mark.parametrize("finish", RULES)
def test_the_first_step_costs_one_row_and_later_ones_the_width(finish):
    """Three tokens and the end, all of them certain: 1 + 4 · 3 rows."""
    model = TableModel({0: {(1,) * n: [0.0, 1.0] for n in range(3)}})
    _, calls = counted(decode, model, [0], Beam(4, finish))
    assert calls.search == 1 + 4 * 3


@pytest.mark.parametrize("finish", RULES)
def test_an_unused_slot_repeats_the_first_prefix(finish):
    """Only two prefixes are possible; rows for them and two copies of the first are stepped."""
    table, read = {(): [0.0, 0.4, 0.6], (1,): [0.0, 0.0, 1.0], (2,): [0.0, 1.0, 0.0]}, []
    model = TableModel({0: table}, dtype=torch.float64)
    watched(model, lambda state, tokens, perturb: read.append(tokens.tolist()))
    decode(model, [0], Beam(4, finish), 3)
    assert read[1:] == [[2, 1, 2, 2], [1, 2, 1, 1]]


@pytest.mark.parametrize("finish", RULES)
def test_beam_stops_when_no_live_hypothesis_can_win(finish):
    """Two outputs at 0.5 each: both end at step 2, though three were asked for."""
    model = TableModel({0: {(): [0.5, 0.5], (1,): [1.0, 0.0]}})
    found, calls = counted(decode, model, [0], Beam(3, finish, nbest=3), 50)
    assert (len(found[0]), calls.search) == (2, 1 + 3)
    tie = TableModel({0: {(): [0.5, 0.5], (1,): [0.0, 1.0], (1, 1): [0.0, 1.0]}})
    found, calls = counted(decode, tie, [0], Beam(2, finish), 50)
    # What is alive can only equal it.
    assert (found[0][0].tokens, calls.search) == ((), 1)
