"""NPAD: what it guarantees, and over what."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cases import (
    FOUR,
    PLAIN,
    RANDOM,
    assert_same,
    by_name,
    in_fours,
    key,
    npad,
    recurrent,
    summaries,
    tables,
    tokens,
)
from npad import NPAD, Beam, Greedy, MostProbable, Noise, Noisy, decode
from npad.schedules import Constant
from npad.selectors import WithCut

inners = pytest.mark.parametrize("inner", **by_name(PLAIN))


def outputs(hypotheses):
    return [(one.tokens, one.finished, round(one.log_prob, 9)) for one in hypotheses]


def distinct(hypotheses):
    return list(dict.fromkeys(outputs(hypotheses)))


@inners
@pytest.mark.parametrize("chains", [1, 4])
@in_fours
@given(model=tables(sentences=4, max_vocabulary=3), max_length=st.integers(1, 5))
def test_noiseless_npad_is_its_inner_decoder(inner, chains, model, max_length):
    """What the inner decoder finds several times, NPAD returns once."""
    if isinstance(inner, RANDOM):
        chains = 1  # each chain draws on its own
    plain = decode(model, FOUR, inner, max_length)
    found = decode(model, FOUR, NPAD(inner, chains, Noise(0.0)), max_length)
    assert [outputs(one) for one in found] == [distinct(one) for one in plain]
    assert all(one.chain == 0 for hypotheses in found for one in hypotheses)


ORDERS = st.sampled_from([MostProbable(), WithCut()])


def rank(selector, hypothesis):
    """The order of hypotheses: finished ones first, unless those cut at max_length compete."""
    return getattr(selector, "cut_competes", False) or hypothesis.finished, hypothesis.log_prob


@inners
@in_fours
@given(
    selector=ORDERS,
    model=tables(sentences=4),
    sigma=st.floats(0, 3),
    seed=st.integers(0, 2**63),
    max_length=st.integers(1, 5),
)
def test_npad_is_never_below_its_inner_decoder(inner, selector, model, sigma, seed, max_length):
    """Also when the inner one is cut at max_length: most of these tables are deeper than that."""
    ids = [9, 10, 11, 12]
    plain = decode(model, FOUR, inner, max_length, ids=ids)
    decoder = NPAD(inner, 6, Noise(sigma), seed=seed, selector=selector)
    for own, found in zip(plain, decode(model, FOUR, decoder, max_length, ids=ids), strict=True):
        ranks = [rank(selector, one) for one in found]
        assert ranks == sorted(ranks, reverse=True)
        first, log_prob = max(rank(selector, one) for one in own)
        assert ranks[0] >= (first, log_prob - 1e-9)


@inners
@in_fours
@given(
    selector=ORDERS,
    model=tables(sentences=4),
    sigma=st.floats(0.01, 3),
    seed=st.integers(0, 2**63),
)
def test_best_score_never_falls_as_chains_are_added(inner, selector, model, sigma, seed):
    runs = [
        decode(model, FOUR, NPAD(inner, m, Noise(sigma), seed=seed, selector=selector), 5)
        for m in (1, 2, 4, 8)
    ]
    for found in zip(*runs, strict=True):
        ranks = [rank(selector, hypotheses[0]) for hypotheses in found]
        assert ranks == sorted(ranks)


@inners
@pytest.mark.parametrize("cell", ["rnn", "gru", "lstm"])
def test_for_networks_too_it_is_never_below_and_never_falls(inner, cell):
    model, source = recurrent(cell), summaries(6)
    plain = decode(model, source, inner, max_length=8)
    few, many = (decode(model, source, npad(inner, chains=m), max_length=8) for m in (4, 12))
    for a, b, c in zip(plain, few, many, strict=True):
        assert (a[0].finished, a[0].log_prob - 1e-9) <= key(b[0]) <= key(c[0])


@inners
def test_ten_chains_are_a_prefix_of_fifty(inner):
    model, source = recurrent(), summaries(3)
    few, many = (decode(model, source, NPAD(inner, m, Noise(0.5)), max_length=7) for m in (10, 50))
    for some, every in zip(few, many, strict=True):
        early = {(h.tokens, h.chain) for h in every if h.chain < 10}
        assert {(h.tokens, h.chain) for h in some} == early


def test_noisy_chains_are_the_same_with_and_without_a_clean_one():
    model, source = recurrent(), summaries(4)
    with_ = decode(model, source, NPAD(chains=9, noise=Noise(0.8)), max_length=9)
    without = decode(
        model, source, NPAD(chains=8, noise=Noise(0.8), clean_chain=False), max_length=9
    )
    for a, b in zip(with_, without, strict=True):
        clean = {one.tokens for one in a if one.chain == 0}
        noisy = {(one.tokens, one.chain) for one in b if one.tokens not in clean}
        assert {(one.tokens, one.chain) for one in a if one.chain > 0} == noisy
        assert all(one.chain >= 1 for one in b)


def test_noisy_chains_find_outputs_that_greedy_search_misses():
    """On some sentences NPAD over greedy is better, because of a noisy chain."""
    model, source = recurrent(vocabulary=30), summaries(20)
    plain, found = (
        decode(model, source, one, max_length=12)
        for one in (Greedy(), NPAD(chains=30, noise=Noise(0.5)))
    )
    better = [
        b[0] for a, b in zip(plain, found, strict=True) if b[0].log_prob > a[0].log_prob + 1e-6
    ]
    assert len(better) > 5
    assert all(one.chain > 0 for one in better)


def test_noisy_log_prob_is_the_chains_own_and_log_prob_the_clean_models():
    model, source = recurrent(), summaries(1)
    found = decode(model, source, NPAD(chains=6, noise=Noise(1.0)), max_length=6)[0]
    for one in found:
        assert (one.noisy_log_prob == pytest.approx(one.log_prob, abs=1e-9)) == (one.chain == 0)
    ((alone,),) = decode(Noisy(model, Noise(1.0)), source, Greedy(), 6)  # chain 1 of sentence 0
    first = next(one for one in found if one.tokens == alone.tokens)
    assert first.chain == 1
    assert first.noisy_log_prob == pytest.approx(alone.log_prob)


@given(model=tables(max_depth=4), max_length=st.integers(1, 5), seed=st.integers(0, 99))
def test_merging_duplicates_changes_no_result(model, max_length, seed):
    """NPAD returns the best of all chains, each run alone in a noisy model and scored alone."""
    noise, chains = Noise(0.6), 6
    found = decode(model, [0], NPAD(Greedy(), chains, noise, seed=seed), max_length)[0]
    answers = {}
    for chain in range(chains):
        one = chain_alone(model, noise, seed, chain, max_length)
        answers.setdefault((one.tokens, one.finished), chain)
    assert {(one.tokens, one.finished): one.chain for one in found} == answers
    truth = {(o.tokens, o.finished): o.log_prob for o in model.outputs(0, max_length)}
    assert found[0].log_prob == pytest.approx(max((f, truth[t, f]) for t, f in answers)[1])


def chain_alone(model, noise, seed, chain, max_length):
    """One chain of sentence 0, with nothing beside it."""
    from npad.rows import Problems

    one = torch.ones(1, dtype=torch.long)
    problems = Problems(0 * one, chain * one, max_length)
    noisy = Noisy(model, noise, seed)
    sigma = torch.tensor([noise.sigma if chain else 0.0])
    state = noisy.attach(model.start([0]), problems.ids, problems.chains, sigma)
    return Greedy().search(noisy, state, problems).to_lists()[0][0]


def test_all_candidates_are_every_finished_hypothesis_of_every_beam():
    model, source = recurrent(vocabulary=6), summaries(2)
    of_best, of_all = (
        decode(model, source, npad(Beam(4), candidates=c), max_length=9) for c in ("best", "all")
    )
    for few, many in zip(of_best, of_all, strict=True):
        assert {one.tokens for one in few} < {one.tokens for one in many}
        assert key(many[0]) >= key(few[0])
        assert all(one.finished for one in many) or not any(one.finished for one in many)
    silent = decode(model, source, NPAD(Beam(4), 1, Noise(0.0), candidates="all"), max_length=9)
    whole = decode(model, source, Beam(4, nbest=4), max_length=9)
    assert [distinct(s) for s in silent] == [
        distinct([h for h in s if h.finished] or s) for s in whole
    ]


@pytest.mark.parametrize(("inner", "alike"), [(Greedy(), True), (Beam(4), False)], ids=repr)
def test_shared_noise_changes_a_beam_and_not_a_beam_of_one(inner, alike):
    model, source = recurrent(vocabulary=20), summaries(6)
    apart = npad(inner, noise=Noise(1.0, Constant()))
    of_beam = replace(apart, share_noise=True)
    found = [tokens(decode(model, source, decoder, max_length=8)) for decoder in (apart, of_beam)]
    assert (found[0] == found[1]) == alike


def test_a_sigma_for_each_chain():
    model, source = recurrent(), summaries(3)

    def chains_of(sigma):
        return decode(model, source, NPAD(chains=4, noise=Noise(sigma)), max_length=7)

    def found_by(sigma):
        return {hypothesis.chain for found in chains_of(sigma) for hypothesis in found}

    assert_same(chains_of(0.7), chains_of((9, 0.7, 0.7, 0.7)))  # the clean chain stays clean
    assert found_by([0.7, 0.0, 0.0, 0.0]) == {0}
    assert found_by([0.0, 0.0, 0.7, 0.0]) <= {0, 2}
