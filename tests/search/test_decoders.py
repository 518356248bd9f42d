"""Theorems that hold for every decoder; a new one inherits them by joining `cases.EVERY`."""

from __future__ import annotations

import math
from itertools import chain, zip_longest

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cases import (
    EVERY,
    FOUR,
    NOISY,
    PLAIN,
    assert_same,
    by_name,
    counted,
    in_fours,
    key,
    recurrent,
    summaries,
    tables,
    with_decoders,
)
from npad import NPAD, BestOf, Exact, Fallback, Noise, SharedSampling, decode, score
from npad.models.table import TableModel
from npad.rows import Problems

every = pytest.mark.parametrize("decoder", **by_name(EVERY))


@every
@in_fours
@given(model=tables(sentences=4), max_length=st.integers(1, 5))
def test_hypotheses_are_possible_outputs_with_exact_log_prob_best_first(decoder, model, max_length):
    for sentence, found in enumerate(decode(model, FOUR, decoder, max_length)):
        possible = {
            (output.tokens, output.finished): output.log_prob
            for output in model.outputs(sentence, max_length)
        }
        assert found
        assert [key(one) for one in found] == sorted((key(one) for one in found), reverse=True)
        for one in found:
            assert one.log_prob == pytest.approx(possible[one.tokens, one.finished], abs=1e-9)


@every
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
def test_clean_scores_equal_the_judges_in_both_precisions(decoder, dtype):
    model, source = recurrent(dtype=dtype, ends=2.0), summaries(3, dtype)
    found = decode(model, source, decoder, max_length=30)
    judged = score(model, source, [[one.tokens for one in hypotheses] for hypotheses in found])
    pairs = zip(chain(*found), chain(*judged), strict=True)
    ended = [(one.log_prob, log_prob) for one, log_prob in pairs if one.finished]
    assert ended
    for own, log_prob in ended:
        assert own == pytest.approx(log_prob, abs=1e-4 if dtype == torch.float32 else 1e-9)


@every
@in_fours
@given(model=tables(sentences=4, max_vocabulary=3), order=st.permutations(FOUR))
def test_a_sentence_decodes_alike_alone_in_a_batch_and_in_any_order(decoder, model, order):
    together = decode(model, FOUR, decoder, 5, ids=[70, 71, 72, 73])
    shuffled = decode(model, order, decoder, 5, ids=[70 + i for i in order])
    assert_same(shuffled, [together[i] for i in order])
    for i in FOUR:
        assert_same(decode(model, [i], decoder, 5, ids=[70 + i]), [together[i]])


@with_decoders("cell", {"rnn": "rnn", "gru": "gru", "lstm": "lstm"}, fully=["lstm"])
def test_a_network_decodes_alike_alone_and_in_a_batch(decoder, cell):
    model, source = recurrent(cell, layers=2), summaries(5)
    together = decode(model, source, decoder, max_length=10)
    for i in range(5):
        assert_same(
            decode(model, source[i : i + 1], decoder, max_length=10, ids=[i]), [together[i]]
        )


class Margins:
    """A model that notes, step by step, the smallest gap between the two best tokens of a row."""

    def __init__(self, model):
        self.model, self.special, self.sites, self.smallest = model, model.special, model.sites, []
        self.start, self.select = model.start, model.select

    def step(self, state, tokens, perturb=None):
        logits, state = self.model.step(state, tokens, perturb)
        best = logits.topk(2, -1).values
        self.smallest.append((best[:, 0] - best[:, 1]).min().item())
        return logits, state


def first_difference(some, others):
    """The first step, from 0, at which two sets of hypotheses differ, chain by chain, or None."""
    by_chain, by_other = (
        {h.chain: (*h.tokens, h.finished) for h in hypotheses} for hypotheses in (some, others)
    )
    steps = [
        step
        for chain in by_chain.keys() | by_other.keys()
        for step, (token, other) in enumerate(
            zip_longest(by_chain.get(chain, ()), by_other.get(chain, ()))
        )
        if token != other
    ]
    return min(steps, default=None)


@pytest.mark.parametrize(
    "decoder", [PLAIN["greedy"], NOISY["npad-greedy"]], ids=["greedy", "npad-greedy"]
)
@pytest.mark.parametrize("seed", range(8))
def test_in_float32_batches_part_only_at_a_near_tie(decoder, seed):
    model, source = (
        recurrent(dtype=torch.float32, vocabulary=40, seed=seed),
        summaries(16, torch.float32, seed=seed),
    )
    together = decode(model, source, decoder, max_length=10)
    for i in range(16):
        watched = Margins(model)
        alone = decode(watched, source[i : i + 1], decoder, max_length=10, ids=[i])
        step = first_difference(alone[0], together[i])
        assert step is None or watched.smallest[step] < 1e-4


class SilentAfterTheEnd:
    """A table model that returns NaN once a row has read the end token."""

    def __init__(self, model):
        self.model, self.special, self.sites = model, model.special, model.sites

    def start(self, source):
        return self.model.start(source), torch.zeros(len(source), dtype=torch.bool)

    def step(self, state, tokens, perturb=None):
        inner, over = state
        logits, inner = self.model.step(inner, tokens, perturb)
        over = over | (tokens == self.special.eos)
        return logits.masked_fill(over[:, None], math.nan), (inner, over)

    def select(self, state, rows):
        return self.model.select(state[0], rows), state[1][rows]


@every
@in_fours
@given(model=tables(sentences=4, max_vocabulary=3))
def test_predictions_after_the_end_token_are_ignored(decoder, model):
    """Looked at every eighth step, as on a GPU, so that rows go on long after they are over."""
    expected = decode(model, FOUR, decoder, 9)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("npad.search.loop.steps_between_checks", lambda device: 8)
        assert_same(decode(SilentAfterTheEnd(model), FOUR, decoder, 9), expected)


@every
def test_an_empty_batch_gives_an_empty_list(decoder):
    assert decode(TableModel.random(3, 2), [], decoder) == []


@every
def test_sentences_of_different_lengths_are_dropped_when_over(decoder):
    """The row that ends at once must not be carried along for the one that takes ten tokens."""
    short, long = {(): [1.0, 0.0]}, {(1,) * n: [0.0, 1.0] for n in range(9)}
    model = TableModel({"short": short, "long": long}, dtype=torch.float64)
    _, alone = counted(decode, model, ["long"], decoder, 12)
    _, together = counted(decode, model, ["long"] + ["short"] * 9, decoder, 12)
    assert together.search < 3 * alone.search


SIMPLE = {
    name: d
    for name, d in PLAIN.items()
    if not isinstance(d, Exact | BestOf | Fallback | SharedSampling)
}  # BestOf and Fallback have no loop of their own; the host plans the rows of SharedSampling


@pytest.mark.parametrize("inner", **by_name(SIMPLE))
@pytest.mark.parametrize(
    "outer", [lambda d: d, lambda d: NPAD(d, chains=3, noise=Noise(0.3))], ids=["plain", "npad"]
)
def test_steps_never_ask_the_host(inner, outer, monkeypatch):
    """Tensors on the meta device have no values, so .item() or bool() would raise."""
    import npad.search.loop as shared
    from npad.noise.noisy import Noisy

    device = torch.device("meta")
    model = recurrent(dtype=torch.float32).to(device)
    seen = {}

    def iterate(searched, state, frontier, problems, rows):
        steps = shared.Steps(searched, len(problems) * rows, 1)
        idle = torch.zeros(len(problems), dtype=torch.bool, device=device)
        state, frontier, *_ = steps(3, state, frontier, idle, torch.zeros(2, device=device))
        seen["width"] = frontier.tokens.shape
        raise StopIteration

    for module in ("independent", "beam", "stochastic_beam"):
        monkeypatch.setattr(f"npad.search.{module}.run", iterate)
    assert shared.run is not iterate
    problems = Problems(
        torch.zeros(2, dtype=torch.long, device=device),
        torch.zeros(2, dtype=torch.long, device=device),
        5,
    )
    state = model.start(torch.zeros(2, 4, device=device))
    searched = model
    if isinstance(outer(inner), NPAD):
        problems = problems.expand(torch.arange(3, device=device))
        searched = Noisy(model, Noise(0.3))
        rows = torch.zeros(6, dtype=torch.long, device=device)
        state = searched.attach(
            model.select(state, rows), problems.ids, problems.chains, torch.ones(6, device=device)
        )
    with pytest.raises(StopIteration):
        inner.search(searched, state, problems)
    assert seen["width"] == (len(problems), inner.rows)
