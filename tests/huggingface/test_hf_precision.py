"""Hugging Face models in 16 bits: chains that are re-scored, and logits in float32."""

from __future__ import annotations

import pytest
import torch

from cases import assert_lower_precision, key
from hf_cases import build, growing, kinds, source
from npad import NPAD, Beam, Greedy, Noise, decode, signature
from npad.constraints import Constrained, Forbidden
from npad.models.huggingface.adapter import HuggingFace
from npad.models.huggingface.parts import float32_linear
from npad.models.low_precision import LowPrecision

lower = pytest.mark.parametrize("precision", ["bfloat16", "int8"])


@kinds
@lower
@pytest.mark.parametrize("inner", [Greedy(), Beam(2)], ids=["greedy", "beam"])
@pytest.mark.parametrize("adapted", [HuggingFace, growing], ids=["fixed", "growing"])
def test_only_noisy_chains_are_in_lower_precision(kind, precision, inner, adapted):
    model = adapted(build(kind, torch.float32))
    assert_lower_precision(model, source(kind, torch.float32), precision, inner, tolerance=1e-3)


def test_the_chains_are_in_lower_precision_indeed():
    model = HuggingFace(build("marian", torch.float32))
    low = LowPrecision(model, "bfloat16")
    fast, state = low.low_precision(model.reserve(model.start_search(source("marian")), 1))
    logits, _ = fast.step(state, torch.full((4,), model.special.bos))
    assert logits.dtype == torch.bfloat16
    assert model.model.dtype == torch.float32


def test_a_steered_model_has_low_precision_too():
    model = Constrained(HuggingFace(build("marian", torch.float32)), Forbidden([4, 9]))
    low = LowPrecision(model, "bfloat16")
    for (best, *_), (plain, *_) in zip(
        decode(low, source("marian"), NPAD(Greedy(), 5, Noise(0.5)), 8),
        decode(model, source("marian"), Greedy(), 8),
        strict=True,
    ):
        assert not {4, 9} & {*best.tokens}
        assert key(best) >= (plain.finished, plain.log_prob - 1e-4)


@kinds
def test_a_model_in_16_bits_is_scored_in_float32(kind):
    """Of its own weights: what float64 makes of them, up to the rounding of hidden states."""
    model = HuggingFace(build(kind, torch.bfloat16))
    given, seen = source(kind, torch.bfloat16), []
    state = model.reserve(model.start_search(given), 1)
    hook = model.head.register_forward_pre_hook(lambda head, args: seen.append(args[0]))
    logits, _ = model.step(state, torch.full((4,), model.special.bos))
    hook.remove()
    assert logits.dtype == torch.float32
    exact = seen[-1].double() @ model.head.weight.double().t()
    torch.testing.assert_close(logits.double(), exact[:, -1], rtol=1e-5, atol=1e-5)
    assert signature(Greedy(), model).count("+bfloat16-weights") == 1


def test_the_users_own_calls_keep_their_precision():
    model = build("marian", torch.bfloat16)
    decode(HuggingFace(model), source("marian"), Greedy(), 5)
    tokens = torch.tensor([[5, 6]])
    assert model(input_ids=tokens, decoder_input_ids=tokens).logits.dtype == torch.bfloat16


@pytest.mark.parametrize("bias", [None, torch.ones(5, dtype=torch.bfloat16)])
def test_a_float32_product_of_16_bit_tensors(bias):
    x, weight = torch.randn(2, 3, 8).bfloat16(), torch.randn(5, 8).bfloat16()
    expected = x.double() @ weight.double().t() + (0 if bias is None else bias.double())
    torch.testing.assert_close(float32_linear(x, weight, bias).double(), expected)
