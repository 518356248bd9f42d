"""Noisy chains in lower precision: the model itself re-scores them and does all else."""

from __future__ import annotations

from collections import OrderedDict

import pytest
import torch

import npad
from attention_cases import SOURCE, build
from cases import PLAIN, assert_lower_precision, by_name, counted, recurrent, summaries
from npad import NPAD, Actor, Beam, Greedy, InvalidInput, Noise, Noisy, Steered, decode, signature
from npad.constraints import Constrained, Forbidden
from npad.engine.pytree import tree_leaves
from npad.model import Capabilities
from npad.models.cgru.fast import Prepared
from npad.models.low_precision import LowPrecision, cast_state

MODELS = {
    "attention": (lambda: build(torch.float32), SOURCE),
    "prepared": (lambda: Prepared(build(torch.float32, units=32, embedding=16, scale=0.2)), SOURCE),
    "gru": (lambda: recurrent(dtype=torch.float32), summaries(4, torch.float32)),
}
models = pytest.mark.parametrize(("model", "source"), MODELS.values(), ids=MODELS)
lower = pytest.mark.parametrize("precision", ["bfloat16", "int8"])


@models
@lower
@pytest.mark.parametrize("inner", **by_name(PLAIN))
def test_only_noisy_chains_are_in_lower_precision(model, source, precision, inner):
    assert_lower_precision(model(), source, precision, inner)


@models
def test_the_chains_are_in_lower_precision_indeed(model, source):
    low, seen = LowPrecision(model(), "bfloat16"), []
    step = low.low.step

    def watched(*given):
        logits, state = step(*given)
        seen.append(logits.dtype)
        return logits, state

    low.low.step = watched
    _, calls = counted(decode, low, source, NPAD(Greedy(), 5, Noise(0.3)), 6)
    assert seen
    assert set(seen) == {torch.bfloat16}
    assert calls.search == 5 * len(seen) * len(source)  # four noisy chains, and the clean one
    assert calls.rescoring > 0


def test_casting_a_state_converts_floating_point_tensors_only():
    state = build(torch.float32).start(SOURCE)
    low = cast_state(state, torch.bfloat16)
    assert (low.hidden.dtype, low.mask.dtype, low.layout) == (
        torch.bfloat16,
        torch.bool,
        state.layout,
    )
    nested = {"a": [torch.ones(2), (torch.arange(2), 3)]}
    assert cast_state(nested, torch.bfloat16)["a"][0].dtype == torch.bfloat16
    assert cast_state(nested, torch.bfloat16)["a"][1][1] == 3
    ordered = cast_state(OrderedDict(a=torch.zeros(2), b=[torch.ones(1), 3]), torch.bfloat16)
    assert [x.dtype for x in tree_leaves(ordered)] == [torch.bfloat16] * 2


@lower
def test_load_takes_a_precision(precision):
    texts = [
        "She spends most of her money on books.",
        "I would rather stay at home than go out tonight.",
    ]
    full, low = (npad.load("en-de", precision=name) for name in ("float32", precision))
    decoder = NPAD(Greedy(), 5, Noise(0.3))
    found = low.translate(texts, decoder)
    for output, plain in zip(found, full.translate(texts, Greedy()), strict=True):
        assert output.log_prob >= plain.log_prob - 1e-4
    assert low.translate(texts, Beam(3))[0].text == full.translate(texts, Beam(3))[0].text
    assert f"model:en-de+{precision}|" in found[0].signature == signature(decoder, low.model)


def test_unknown_precisions_and_models_without_weights_are_refused():
    with pytest.raises(InvalidInput, match=r"must be one of .* 'int8', 'int8-all', not 'int4'"):
        npad.load("en-de", precision="int4")
    with pytest.raises(
        InvalidInput, match="toy is not a torch module: it has no weights to convert to bfloat16"
    ):
        npad.load("toy", precision="bfloat16")


def test_the_clean_chain_alone_makes_no_copy_of_the_state():
    model = build(torch.float32)
    low = LowPrecision(model, "bfloat16")
    low.low.step = None  # whatever takes a step of the copy fails
    found = decode(low, SOURCE, NPAD(Greedy(), 1, Noise(0.3)), 6)
    assert [h[0].tokens for h in found] == [h[0].tokens for h in decode(model, SOURCE, Greedy(), 6)]


def test_every_wrapper_is_where_the_buffers_of_its_model_are():
    model = build(torch.float32).to("meta")
    for module in list(model.modules()):
        for name, weight in list(module.named_parameters(recurse=False)):
            delattr(module, name)
            module.register_buffer(name, weight.detach())
    assert not list(model.parameters())
    wrappers = [
        LowPrecision(model),
        LowPrecision(model).low,
        Noisy(model, Noise(0.3)),
        Constrained(model, Forbidden([3], device="meta")),
        Steered(model, Actor.for_model(model, units=4)),
    ]
    assert {Capabilities.of(wrapper).device.type for wrapper in [model, *wrappers]} == {"meta"}
