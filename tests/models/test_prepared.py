"""The model prepared for decoding gives what the plain one gives, with less arithmetic."""

from __future__ import annotations

import pytest
import torch

import npad
from attention_cases import SOURCE, build
from cases import assert_same, with_decoders
from npad import NPAD, Beam, Greedy, Noise, decode, score
from npad.models.cgru import fast as module
from npad.models.cgru.fast import Prepared, prepared
from npad.models.cgru.model import AttentionModel
from npad.models.low_precision import LowPrecision
from npad.rescoring import strategies
from npad.rescoring.plan import rectangles
from npad.selectors import GNMTLength
from npad.testing import check_model

KINDS = {
    "one layer": {},
    "two layers": {"layers": 2},
    "padded": {"units": 257},
    "tied": {"units": 8, "tied": True},
}
kinds = pytest.mark.parametrize("how", KINDS.values(), ids=KINDS)


def pair(**how):
    plain = build(**how, scale=0.6 if how.get("units", 6) < 100 else 0.05)
    return plain, Prepared(plain)


@kinds
def test_prepared_model_keeps_the_contract(how):
    check_model(pair(**how)[1], SOURCE)


@with_decoders("how", KINDS, fully=["one layer"])
def test_prepared_model_decodes_as_the_plain_one(how, decoder):
    plain, fast = pair(**how)
    assert_same(decode(fast, SOURCE, decoder, 8), decode(plain, SOURCE, decoder, 8))


@pytest.mark.parametrize("site", ["hidden.0", "embedding", "output"])
def test_noise_enters_where_it_did(site):
    plain, fast = pair()
    noisy = NPAD(Beam(2), 4, Noise(0.7, site=site))
    assert_same(decode(fast, SOURCE, noisy, 8), decode(plain, SOURCE, noisy, 8))


@pytest.mark.parametrize("block", [1, 50, 400])
def test_the_attention_in_blocks_is_the_attention(block, monkeypatch):
    plain, fast = pair()
    monkeypatch.setattr(module, "ATTENTION_BLOCK_NUMBERS", block)
    assert_same(decode(fast, SOURCE, Beam(3), 8), decode(plain, SOURCE, Beam(3), 8))


def test_tokens_are_looked_up_in_a_table(monkeypatch):
    plain, fast = pair()
    first = fast._token_input(torch.arange(3))
    assert fast.table is not None
    assert torch.equal(fast._token_input(torch.arange(11))[:3], first)  # whatever came before
    targets = [[[3, 4], [5]]] * len(SOURCE)
    before = score(plain, SOURCE, targets)
    assert score(fast, SOURCE, targets) == [pytest.approx(one, abs=1e-12) for one in before]
    assert_same(decode(fast, SOURCE, Beam(3), 8), decode(plain, SOURCE, Beam(3), 8))
    monkeypatch.setitem(module.MAX_TABLE_NUMBERS, "cpu", 1)
    _, small = pair()
    assert torch.allclose(small._token_input(torch.arange(11)), fast.table[:11])
    assert small.table is None


def test_a_table_goes_where_the_weights_go():
    fast = Prepared(build(torch.float32))
    decode(fast, SOURCE, Greedy(), 4)
    assert fast.table is not None
    low = LowPrecision(fast, "bfloat16")
    assert low.low.table.dtype == torch.bfloat16
    assert fast.table.dtype == torch.float32
    assert decode(low, SOURCE, NPAD(Greedy(), 3, Noise(0.3)), 4)


def test_only_what_can_be_is_prepared():
    for how in ({"cell": "lstm"}, {"attention": False}):
        model = build(**how)
        assert prepared(model) is model
    assert isinstance(prepared(build()), Prepared)


def test_loaded_models_are_prepared_and_the_trained_one_is_left_alone():
    model = npad.load("en-de").model
    assert isinstance(model, Prepared)
    assert isinstance(model.plain, AttentionModel)
    assert model.name == model.plain.name
    source = npad.load("en-de").encode(["How do I get to the station?"])
    assert (
        decode(model, source, Greedy(), 30)[0][0].tokens
        == decode(model.plain, source, Greedy(), 30)[0][0].tokens
    )


def test_coverage_is_that_of_the_plain_model_in_rectangles_of_other_sources(monkeypatch):
    monkeypatch.setattr(
        Prepared, "capturable", property(lambda self: True)
    )  # sources are padded to a grid
    small = strategies.COVERING._replace(parts=lambda reads, on_gpu: rectangles(reads, 1, 1))
    monkeypatch.setattr(strategies, "COVERING", small)
    decoder = NPAD(Beam(2), 3, Noise(0.5), selector=GNMTLength(0.6, beta=0.3))
    source = [[1], [2, 3, 4, 5, 6, 7, 8, 9, 1, 2], [3, 4]]
    assert_same(decode(Prepared(build()), source, decoder, 8), decode(build(), source, decoder, 8))
