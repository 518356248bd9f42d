"""NPAD whose chains share their prefixes: the same result, from one transition per prefix."""

from __future__ import annotations

import pytest
import torch

from attention_cases import SOURCE, build
from cases import PLAIN, assert_same, by_name, counted, recurrent, summaries, with_zeros
from npad import (
    NPAD,
    Beam,
    Exact,
    Greedy,
    InvalidInput,
    LengthNormalised,
    Noise,
    Sampling,
    SharedSampling,
    Special,
    SteeredSearch,
    decode,
)
from npad.distributions import Orthogonal
from npad.errors import ModelError
from npad.models.cgru.fast import Prepared
from npad.models.low_precision import LowPrecision
from npad.models.table import TableModel
from npad.schedules import Adaptive
from npad.search import chains
from steered_cases import actor_for


def begins_as_it_ends() -> Prepared:
    """A model whose begin token is its end token."""
    model = build(scale=0.9)
    model.special = Special(bos=0, eos=0, pad=11)
    return Prepared(model)


MODELS = {
    "prepared": lambda: (Prepared(build(scale=0.9)), SOURCE),
    "attention": lambda: (build(scale=0.9, cell="lstm", layers=2), SOURCE),
    "recurrent": lambda: (recurrent("lstm"), summaries(4)),
    "begins-as-it-ends": lambda: (begins_as_it_ends(), SOURCE),
    "table": lambda: (with_zeros(TableModel.random(4, 4, 1, 3, torch.float64), 1), [0, 1, 2]),
}
AT_OUTPUT = Noise(0.8, site="output")
models = pytest.mark.parametrize("make", **by_name(MODELS))


def alone(monkeypatch, *arguments):
    """Decode with a row per chain, and also return the search's model calls."""
    with monkeypatch.context() as patch:
        patch.setattr(chains, "can_share", lambda model, site: False)
        return shared(*arguments)


def shared(*arguments):
    """Decode with shared prefixes, and also return the search's model calls."""
    found, calls = counted(decode, *arguments)
    return found, calls.search


@pytest.fixture
def decode_both_ways(monkeypatch):
    """Decode with shared prefixes and with a row per chain, to the same end.

    Returns what both find, the calls with shared prefixes and those without.
    """

    def run(*arguments):
        expected, calls = alone(monkeypatch, *arguments)
        found, fewer = shared(*arguments)
        assert_same(found, expected)
        return found, fewer, calls

    return run


@models
@pytest.mark.parametrize("inner", **by_name(PLAIN))
def test_sharing_changes_no_result_of_any_inner_decoder(make, inner, decode_both_ways):
    decode_both_ways(*make(), NPAD(inner, 6, AT_OUTPUT), 8)


@models
@pytest.mark.parametrize(
    "options",
    [
        {"clean_chain": False, "seed": 5},
        {"candidates": "all", "selector": LengthNormalised(), "inner": Beam(3)},
        {"inner": Beam(2), "share_noise": True},
        {"noise": Noise(0.3, site="output", relative=True)},
        {"noise": Noise(0.9, Adaptive(), site="output")},
        {"noise": Noise(tuple(0.1 * m for m in range(12)), site="output")},
        {"noise": Noise(0.0, site="output")},
        {"noise": Noise(0.8, distribution=Orthogonal(), site="output")},
    ],
    ids=str,
)
@pytest.mark.parametrize("max_length", [1, 9])
def test_sharing_changes_no_result_of_any_option(make, options, max_length, decode_both_ways):
    decoder = NPAD(**({"chains": 12, "noise": AT_OUTPUT} | options))
    decode_both_ways(*make(), decoder, max_length)


@models
def test_some_chains_part_and_calls_fall(make, decode_both_ways):
    decoder = NPAD(chains=40, noise=Noise(0.4, site="output"))
    found, fewer, calls = decode_both_ways(*make(), decoder, 9)
    assert any(len(hypotheses) > 1 for hypotheses in found)
    assert fewer < 0.7 * calls


def test_a_sentence_alone_takes_one_call_for_each_distinct_prefix():
    model = TableModel.random(4, 5, 1, dtype=torch.float64)
    found, calls = shared(model, [0], NPAD(chains=30, noise=AT_OUTPUT), 9)
    prefixes = {
        hypothesis.tokens[:t]
        for hypothesis in found[0]
        for t in range(len(hypothesis.tokens) + hypothesis.finished)
    }
    assert len(found[0]) > 3
    assert calls == len(prefixes)


@pytest.mark.parametrize("inner", [Greedy(), Beam(3), Exact(300, Beam(1)), Sampling(3)], ids=repr)
def test_a_call_is_counted_once(inner, decode_both_ways):
    """A single chain has little to share, and never more calls."""
    model = TableModel.random(4, 4, 2, dtype=torch.float64)
    decoder = NPAD(inner, 1, AT_OUTPUT, clean_chain=False)
    _, fewer, calls = decode_both_ways(model, [0], decoder, 6)
    assert fewer <= calls


@pytest.mark.parametrize("site", ["hidden", "hidden.0", "embedding"])
def test_noise_that_stays_in_the_state_is_not_shared(site):
    model = Prepared(build())
    assert not chains.can_share(model, site)
    decoder = NPAD(chains=7, noise=Noise(0.3, site=site))
    found, calls = shared(model, SOURCE[:1], decoder, 9)
    longest = max(len(one.tokens) + one.finished for one in found[0])
    assert calls >= 7 * longest


def test_a_subclass_with_a_step_of_its_own_does_not_share():
    class Doubled(TableModel):
        def step(self, state, tokens, perturb=None):
            logits, state = super().step(state, tokens, perturb)
            return 2 * logits, state

    tables = TableModel.random(4, 4, 1, dtype=torch.float64).tables
    model, plain = Doubled(tables), TableModel(tables)
    assert not chains.can_share(model, "output")
    assert chains.can_share(plain, "output")
    plain.step = model.step
    assert not chains.can_share(plain, "output")


def test_chains_in_lower_precision_share_and_the_clean_chain_does_not_change():
    model = LowPrecision(Prepared(build(torch.float32)), "bfloat16")
    decoder = NPAD(chains=20, noise=Noise(0.3, site="output"))
    found, calls = shared(model, SOURCE, decoder, 9)
    plain, greedy_calls = shared(model, SOURCE, Greedy(), 9)
    for hypotheses, (greedy,) in zip(found, plain, strict=True):
        assert (hypotheses[0].finished, hypotheses[0].log_prob) >= (
            greedy.finished,
            greedy.log_prob - 1e-4,
        )
    assert calls < 20 * greedy_calls / 2


def test_chains_that_do_not_fit_in_memory_share_in_parts(monkeypatch):
    model, decoder = Prepared(build()), NPAD(chains=9, noise=AT_OUTPUT)
    expected, _ = alone(monkeypatch, model, SOURCE, decoder, 8)
    assert_same(decode(model, SOURCE, decoder, 8, max_rows=12), expected)


def test_a_search_with_an_actor_still_finds_it(decode_both_ways):
    model, decoder = build(), NPAD(SteeredSearch(), 4, AT_OUTPUT)
    with pytest.raises(InvalidInput, match="has no actor"):
        decode(model, SOURCE, decoder, 8)
    model.actor = actor_for(model)
    decode_both_ways(model, SOURCE, decoder, 8)


@pytest.mark.parametrize("decoder", [NPAD(chains=3, noise=AT_OUTPUT), SharedSampling(3)], ids=repr)
def test_invalid_logits_are_reported(decoder):
    model = Prepared(build(torch.float32))
    model.logits.weight.fill_(torch.nan)
    with pytest.raises(ModelError, match="returned NaN"):
        decode(model, SOURCE, decoder, 8)
