"""Chains of Hugging Face models whose noise does not stay in the cache share their prefixes."""

from __future__ import annotations

import pytest
import torch

from cases import assert_same
from hf_cases import build, hooks, kinds, source
from npad import NPAD, Beam, Greedy, Noise, Sampling, SharedSampling, count_calls, decode
from npad.models.huggingface.adapter import HuggingFace
from npad.search import chains

INNER = {"greedy": Greedy(), "beam": Beam(3), "sampling": Sampling(2)}


class Rows:
    """Counts the rows that go through a model's decoder layers."""

    def __init__(self, model):
        self.count = 0
        HuggingFace(model).layers[0].register_forward_pre_hook(self)

    def __call__(self, module, args):
        self.count += len(args[0])


def both(monkeypatch, adapter, rows, *arguments):
    """Decode with and without sharing: results, model calls and rows of each."""
    measured = []
    for can_share in (chains.can_share, lambda model, site: False):
        with monkeypatch.context() as patch, count_calls() as calls:
            patch.setattr(chains, "can_share", can_share)
            rows.count = 0
            found = decode(adapter, *arguments)
        measured.append((found, calls.search, rows.count))
    return measured


@kinds
@pytest.mark.parametrize("inner", INNER.values(), ids=INNER)
@pytest.mark.parametrize("site", ["output", "hidden", "hidden.1", "embedding"])
def test_noise_that_does_not_persist_is_shared_and_changes_nothing(kind, inner, site, monkeypatch):
    model = build(kind)
    adapter, rows = HuggingFace(model, persist=False), Rows(model)
    decoder = NPAD(inner, 6, Noise(0.5, site=site, relative=True))
    before = hooks(model)
    (found, calls, passed), (expected, all_calls, all_passed) = both(
        monkeypatch, adapter, rows, source(kind), decoder, 7
    )
    assert_same(found, expected)
    assert passed < all_passed
    assert calls < all_calls if site == "output" else calls == all_calls
    assert hooks(model) == before


@kinds
@pytest.mark.parametrize("fixed_size", [None, False], ids=["fixed", "growing"])
def test_noise_at_the_head_is_shared_whatever_the_cache_keeps(kind, fixed_size, monkeypatch):
    model = build(kind)
    adapter, rows = HuggingFace(model), Rows(model)
    adapter.fixed_size = fixed_size
    decoder = NPAD(chains=12, noise=Noise(0.1, site="output", relative=True))
    (found, calls, passed), (expected, all_calls, all_passed) = both(
        monkeypatch, adapter, rows, source(kind), decoder, 9
    )
    assert_same(found, expected)
    assert calls < all_calls
    assert passed < all_passed


@kinds
def test_noise_that_persists_is_not_shared(kind):
    adapter = HuggingFace(build(kind))
    assert not any(chains.can_share(adapter, site) for site in ("hidden", "hidden.0", "embedding"))
    assert chains.can_share(adapter, "output")


@kinds
@pytest.mark.parametrize("temperature", [0.3, 1.0])
def test_samples_share_their_prefixes(kind, temperature):
    adapter = HuggingFace(build(kind))
    with count_calls() as calls:
        expected = decode(adapter, source(kind), Sampling(12, temperature), 8)
    with count_calls() as shared, torch.inference_mode():
        found = decode(adapter, source(kind), SharedSampling(12, temperature), 8)
    assert_same(found, expected)
    assert shared.search < calls.search
