"""Rows of a sentence read its source or prompt from one copy: the results of copies for each."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from cases import assert_same, tokens
from hf_cases import PROMPTS, build, generated, kinds, plain, source
from npad import NPAD, Beam, Greedy, Noise, decode
from npad.engine.pytree import tree_leaves
from npad.models.huggingface import shared_attention
from npad.models.huggingface.adapter import HuggingFace
from npad.models.huggingface.shared_attention import Prompt, attend_to_prompt, attend_to_source
from npad.models.huggingface.states import FixedState

shapes = pytest.mark.parametrize(("sentences", "each"), [(1, 1), (1, 3), (2, 1), (2, 3)])
lengths = pytest.mark.parametrize("tokens", [1, 3])


def random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def copied(x: torch.Tensor, each: int) -> torch.Tensor:
    return x.repeat_interleave(each, 0)


@shapes
@lengths
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("biased", [False, True])
def test_attention_to_a_shared_source(sentences, each, tokens, masked, biased):
    torch.manual_seed(0)
    query = random(sentences * each, 2, tokens, 4)
    key, value = random(sentences, 2, 5, 4), random(sentences, 2, 5, 4)
    mask = torch.where(torch.rand(sentences, 1, 1, 5) < 0.3, -1e30, 0.0).double() * masked
    bias = random(1, 2, tokens, 5) * biased
    expected = scaled_dot_product_attention(
        query, copied(key, each), copied(value, each), copied(mask, each) + bias, scale=0.7
    )
    found = attend_to_source(
        query, key, value, mask if masked else None, 0.7, bias if biased else None
    )
    torch.testing.assert_close(found, expected.transpose(1, 2))


@shapes
@lengths
@pytest.mark.parametrize("group", [1, 3])
@pytest.mark.parametrize("prompt", [0, 1, 5])
@pytest.mark.parametrize("scaling", [None, 0.7])
def test_attention_to_a_shared_prompt(sentences, each, tokens, group, prompt, scaling):
    """With grouped queries, and with padding in the prompt."""
    torch.manual_seed(0)
    rows, heads, own = sentences * each, 2, 4
    query = random(rows, heads * group, tokens, 4)
    shared = [random(heads, sentences, prompt, 4) for _ in range(2)]
    key, value = (random(heads, rows, own, 4).transpose(0, 1) for _ in range(2))
    mask = torch.where(torch.rand(sentences, 1, tokens, prompt + own) < 0.3, -1e30, 0.0).double()
    mask[..., -1] = 0  # something to read
    keys, values = (
        torch.cat([copied(common.transpose(0, 1), each), mine], 2)
        for common, mine in zip(shared, (key, value), strict=True)
    )
    expected = scaled_dot_product_attention(
        query,
        keys.repeat_interleave(group, 1),
        values.repeat_interleave(group, 1),
        copied(mask, each),
        scale=scaling,
    )
    found = attend_to_prompt(query, key, value, Prompt(*shared), mask, scaling)
    torch.testing.assert_close(found, expected.transpose(1, 2))


@pytest.mark.parametrize("kind", ["llama", "gpt2", "marian", "t5"])
def test_fifty_chains_hold_one_copy_of_what_they_share(kind):
    """At most 1.3 times the memory of one chain, besides the chains' own tokens."""
    model, chains, steps, length = HuggingFace(build(kind)), 50, 8, 60
    model.longest = None
    one = model.reserve(model.start([[5] * length]), steps)
    assert isinstance(one, FixedState)
    fifty = model.select(one, torch.zeros(chains, dtype=torch.long))
    own = memory(fifty.own)
    assert memory(fifty) - own <= 1.3 * (memory(one) - memory(one.own))
    assert own == pytest.approx(chains * memory(one.own), rel=0.01)


def memory(state) -> int:
    return sum(tensor.nbytes for tensor in tree_leaves(state))


@kinds
def test_the_model_keeps_its_attention(kind):
    model = build(kind)
    before = model.config._attn_implementation
    expected, _ = generated(model, kind, source(kind))
    decode(HuggingFace(model), source(kind), NPAD(Greedy(), 3, Noise(0.3)), 6)
    assert model.config._attn_implementation == before
    assert generated(model, kind, source(kind))[0] == expected


@pytest.mark.parametrize("kind", ["marian", "llama"])
def test_generate_runs_beside_it_in_another_thread(kind):
    """It passes through the function that shares, and shares nothing."""
    model, decoder = build(kind), NPAD(Greedy(), 3, Noise(0.3))
    alone, _ = generated(model, kind, PROMPTS)
    expected = decode(HuggingFace(model), PROMPTS, decoder, 12)
    with ThreadPoolExecutor(3) as pool:
        searches = [pool.submit(decode, HuggingFace(model), PROMPTS, decoder, 12) for _ in range(6)]
        others = [pool.submit(generated, model, kind, PROMPTS) for _ in range(6)]
        for search, other in zip(searches, others, strict=True):
            assert_same(search.result(), expected)
            assert other.result()[0] == alone
    assert model.config._attn_implementation == "sdpa"


@kinds
def test_a_model_with_another_attention_keeps_its_growing_cache(kind):
    model, given = build(kind, torch.float32), source(kind, torch.float32)
    expected = decode(HuggingFace(model), given, Beam(2), 6)
    model.set_attn_implementation("eager")
    with pytest.warns(UserWarning, match="a cache that grows .* its attention is not 'sdpa'"):
        adapter = HuggingFace(model)
    assert tokens(decode(adapter, given, Beam(2), 6)) == tokens(expected)
    assert adapter.fixed_size is False
    model.set_attn_implementation("sdpa")
    assert HuggingFace(model).fixed_size is not False


def test_attention_that_cannot_be_shared_is_left_alone(monkeypatch):
    """As one with a cap on its scores."""
    model = build("llama")
    expected = plain(model, PROMPTS, Beam(2), 6)
    monkeypatch.setattr(shared_attention, "UNSUPPORTED", ("dropout",))
    adapter = HuggingFace(model)
    with pytest.warns(UserWarning, match="attention with dropout cannot be shared"):
        assert_same(decode(adapter, PROMPTS, Beam(2), 6), expected)
    assert adapter.fixed_size is False


def test_a_state_that_has_read_on_is_not_shared():
    """Its rows may have read different tokens."""
    model = HuggingFace(build("llama"))
    state = model.select(model.start([[5, 6, 7]]), torch.tensor([0, 0]))
    _, state = model.step(state, torch.tensor([4, 9]))
    assert model.reserve(state, 5) is state
