"""How NPAD's chains are run and judged: together, in turn where memory is short, and counted."""

from __future__ import annotations

import traceback
from typing import Any

import pytest
import torch

from cases import (
    PLAIN,
    Small,
    assert_same,
    counted,
    npad,
    one_warning,
    read_by_hand,
    recurrent,
    summaries,
    tokens,
    watched,
)
from npad import NPAD, Beam, Exact, Greedy, Noise, Sampling, decode
from npad.distributions import Antithetic, Fixed, Gaussian, Orthogonal
from npad.errors import OutOfMemory
from npad.models.table import TableModel
from npad.schedules import Constant


@pytest.mark.parametrize(
    "inner", [Greedy(), Beam(3, nbest=2), Sampling(3)], ids=["greedy", "beam", "sampling"]
)
def test_chains_that_do_not_fit_together_run_in_turn_to_the_same_end(inner, monkeypatch):
    model, source = recurrent(vocabulary=20), summaries(3)
    whole = decode(model, source, npad(inner, chains=13), max_length=9)
    seen = set()

    def room_for(rows):
        def ensure_fits(asked, bytes_each, device):
            seen.add(asked)
            if asked > rows:
                raise OutOfMemory("too many")

        monkeypatch.setattr("npad.search.loop.ensure_fits", ensure_fits)

    room_for(3 * 4 * inner.rows)
    with one_warning():
        assert_same(decode(model, source, npad(inner, chains=13), max_length=9), whole)
    assert max(seen) == 3 * 13 * inner.rows
    assert 3 * 4 * inner.rows in seen
    room_for(3 * inner.rows - 1)
    with one_warning(), pytest.raises(OutOfMemory):
        decode(model, source, npad(inner, chains=13), max_length=9)


@pytest.mark.parametrize(
    "error",
    [torch.OutOfMemoryError("out"), RuntimeError("can't allocate memory: 9 bytes")],
    ids=["gpu", "cpu"],
)
@pytest.mark.parametrize("forced", [True, False], ids=["in one go", "step by step"])
def test_chains_and_their_judge_run_in_turn_when_memory_fails(error, forced, monkeypatch):
    model, source = recurrent(vocabulary=20), summaries(3)
    decoder = npad(Beam(2), chains=12, candidates="all", noise=Noise(1.0))
    whole = decode(model, source, decoder, max_length=7)
    assert max(map(len, whole)) > 5

    small: Any = Small(model, 10, error=error)
    if forced:

        def reads(state, tokens):
            if len(tokens) > 4:
                raise error
            return model.forced(state, tokens)

        small.forced = reads
    with one_warning():
        assert_same(decode(small, source, decoder, max_length=7), whole)
    with one_warning(), pytest.raises(OutOfMemory):
        decode(small, summaries(11), decoder, max_length=7)


@pytest.mark.parametrize(
    "inner", [Greedy(), Beam(2), Sampling(2)], ids=["greedy", "beam", "sampling"]
)
def test_sentences_are_dropped_whole_with_all_their_chains(inner):
    """Chains end at different steps; at every step all live sentences have as many rows."""
    model, source, rows = recurrent(vocabulary=6, ends=2.0), summaries(6), []
    watched(model, lambda state, *_: rows.append(torch.bincount(state.sentence).tolist()))
    decode(model, source, NPAD(inner, 4, Noise(1.5, Constant())), max_length=40)
    searched = [[count for count in counts if count] for counts in rows]
    assert {count for counts in searched for count in counts} == {4, 4 * inner.rows}
    assert all(len(set(counts)) == 1 for counts in searched)
    assert min(map(len, searched)) < 6


def test_calls_and_rescoring_are_counted_apart():
    """Two certain tokens and the end: 5 chains · 3 steps, one distinct hypothesis read in 3."""
    model = TableModel({0: {(1,) * n: [0.0, 1.0] for n in range(2)}})
    _, calls = counted(decode, model, [0], NPAD(Greedy(), 5, Noise(0.0)))
    assert (calls.search, calls.rescoring) == (15, 3)


def test_a_judge_of_the_models_own_is_asked_and_counted():
    """A model may name another to re-score."""
    model, source = recurrent(ends=2.0), summaries(2)
    model.judge = recurrent(seed=1)
    plain, calls = counted(decode, model, source, npad(Greedy()), max_length=30)
    assert calls.rescoring > 0
    for sentence, hypotheses in enumerate(plain):
        ended = [one for one in hypotheses if one.finished]
        assert ended
        for one in ended:
            state = model.start(source[sentence : sentence + 1])
            expected = read_by_hand(model.judge, state, one.tokens)
            assert one.log_prob == pytest.approx(expected, abs=1e-9)


# Gaussian noise in every decoder; noise that chains have in common in one decoder of each sort.
PARTS = [(name, Gaussian()) for name in PLAIN]
PARTS += [
    (name, kind)
    for name in ("greedy", "sampling", "nbest", "tight")
    for kind in (Antithetic(), Orthogonal(), Fixed())
]
PARAMS = [
    pytest.param(PLAIN[name], kind, id=f"{type(kind).__name__}-{name}") for name, kind in PARTS
]


@pytest.mark.parametrize(("inner", "kind"), PARAMS)
def test_chains_in_parts_find_what_they_find_together(inner, kind):
    model, source = recurrent(), summaries(3)
    decoder = NPAD(inner, 7, Noise(0.8, distribution=kind))
    together = decode(model, source, decoder, 6)
    rows = []
    watched(model, lambda state, tokens, perturb: rows.append(len(tokens)))
    for most in (1, 3 * 2 * inner.rows):
        parts = decode(model, source, decoder, 6, max_rows=most)
        if isinstance(
            kind, Orthogonal
        ):  # the same up to rounding, which its matrix product decides
            assert tokens(parts) == tokens(together)
        else:
            assert_same(parts, together)
    if not isinstance(inner, Exact):
        assert max(rows) <= 3 * 2 * inner.rows


@pytest.mark.parametrize("decoder", [Greedy(), NPAD(chains=2), NPAD(Beam(2), chains=2)], ids=str)
def test_a_step_of_the_model_is_eleven_frames_from_search_at_most(decoder):
    """Of `npad.decoding.search`, which pipelines call as `decode` does."""
    depths = []

    class Probed(TableModel):
        def step(self, state, tokens, perturb=None):
            names = [frame.name for frame in traceback.extract_stack()]
            depths.append(len(names) - names.index("search"))
            return super().step(state, tokens, perturb)

    model = Probed(TableModel.random(3, 2).tables)
    decode(model, [0], decoder, 3)
    assert max(depths) <= 11
