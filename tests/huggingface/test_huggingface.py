"""Tiny random Hugging Face models: the contract, and `generate` as the reference."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from cases import assert_clean_scores, key
from hf_cases import V, build, hooks, kinds, source
from hf_cases import saved as saved
from npad import NPAD, Beam, Greedy, Noise, decode
from npad.models.huggingface.adapter import HuggingFace
from npad.testing import check_model


@kinds
def test_hugging_face_models_keep_the_contract(kind):
    check_model(HuggingFace(build(kind)), source(kind))


@kinds
@pytest.mark.parametrize("inner", [Greedy(), Beam(3)], ids=["greedy", "beam"])
def test_npad_keeps_its_theorems_with_noise_at_every_site(kind, inner):
    model, inputs = HuggingFace(build(kind)), source(kind)
    plain = [nbest[0] for nbest in decode(model, inputs, inner, 10)]
    silent = decode(model, inputs, NPAD(inner, 4, Noise(0.0)), 10)
    assert [nbest[0].tokens for nbest in silent] == [best.tokens for best in plain]
    for site in ("hidden", "hidden.1", "embedding", "output"):
        noisy = NPAD(inner, 6, Noise(0.5, site=site, relative=True))
        nbest_lists = decode(model, inputs, noisy, 10)
        for nbest, best in zip(nbest_lists, plain, strict=True):
            assert key(nbest[0]) >= (best.finished, best.log_prob - 1e-9)
        assert any(len(nbest) > 1 for nbest in nbest_lists), site
        assert_clean_scores(model, inputs, nbest_lists)


@kinds
def test_hooks_are_gone_after_an_exception(kind):
    model = build(kind)
    before, seen = hooks(model), []

    def break_off(site, x):
        seen.append(hooks(model))
        raise ZeroDivisionError

    adapter = HuggingFace(model)
    state = adapter.start(source(kind))
    with pytest.raises(ZeroDivisionError):
        adapter.step(state, torch.full((4,), adapter.special.bos), break_off)
    assert seen[0] > before == hooks(model)


@pytest.mark.parametrize("kind", ["marian", "llama"])
def test_threads_do_not_see_each_others_noise(kind):
    model, inputs = HuggingFace(build(kind)), source(kind)
    decoders = [
        Greedy(),
        NPAD(Greedy(), 4, Noise(0.7, relative=True)),
        NPAD(Greedy(), 4, Noise(0.7, relative=True), seed=5),
    ]
    expected = [decode(model, inputs, decoder, 10) for decoder in decoders]
    with ThreadPoolExecutor(3) as pool:
        for _ in range(5):
            found = pool.map(lambda decoder: decode(model, inputs, decoder, 10), decoders)
            assert list(found) == expected


@pytest.mark.parametrize("kind", ["marian", "llama"])
def test_noise_stays_in_the_cache_unless_told_otherwise(kind):
    """After a noisy first step, the next clean prediction differs if and only if noise persists."""
    model, inputs = build(kind), source(kind)
    first, second = torch.full((4,), V), torch.full((4,), 7)

    def after(persist, perturb):
        adapter = HuggingFace(model, persist)
        with torch.no_grad():
            noisy, state = adapter.step(adapter.start(inputs), first, perturb)
            return noisy, adapter.step(state, second)[0]

    clean = after(True, None)
    for persist in (True, False):
        noisy, later = after(persist, lambda site, x: x + 1 if site == "hidden.0" else x)
        assert (noisy - clean[0]).abs().max() > 1e-3
        assert ((later - clean[1]).abs().max() > 1e-6) == persist
