"""Linear layers in whole numbers, and NPAD's noisy chains on them."""

from __future__ import annotations

import copy
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from attention_cases import SOURCE, build
from npad import NPAD, Greedy, InvalidInput, Noise, decode
from npad.models import int8
from npad.models.cgru.fast import Prepared
from npad.models.int8 import Halves, Int8Linear, IntegerProduct, Integers, ensure_int8, quantise
from npad.models.linear import Product
from npad.models.low_precision import LowPrecision
from npad.testing import check_model


def model(**how):
    return Prepared(build(torch.float32, units=32, embedding=16, scale=0.2, **how))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(
    ("inputs", "outputs", "shape"), [(64, 48, (7,)), (37, 21, (2, 3)), (512, 300, (160,))]
)
def test_int8_layer_is_close_to_the_layer_it_replaces(inputs, outputs, shape, bias):
    torch.manual_seed(0)
    layer = nn.Linear(inputs, outputs, bias)
    x = torch.randn(*shape, inputs)
    exact = layer(x)
    apart = Int8Linear(layer)(x) - exact
    assert apart.shape == exact.shape
    assert apart.norm() / exact.norm() < 0.02


@pytest.fixture(params=[Halves, Integers])
def integers(request, monkeypatch):
    """A product of 50 and 40 outputs whose weights are integers times a unit."""
    if request.param is Integers and not torch.cpu._is_vnni_supported():
        pytest.skip("this processor has no VNNI")
    monkeypatch.setattr(int8, "MIN_INTEGERS", 0 if request.param is Integers else 1 << 20)
    torch.manual_seed(0)
    weights = torch.randint(-127, 128, (90, 64)).split([50, 40])
    for weight in weights:
        weight[3, 5] = 127
    blocks = [weight / unit for weight, unit in zip(weights, (153.7, 21.3), strict=True)]
    product = IntegerProduct.stacked(blocks, list(torch.randn(90).split([50, 40])))
    assert type(product._packed_for(torch.zeros(1, 64))) is request.param
    product.packed = None
    return product


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(1,), (16,), (2, 3)])
def test_a_product_of_integers_is_as_precise_as_in_float32(integers, shape, bias):
    integers.bias = integers.bias if bias else None
    x = torch.randn(*shape, 64) * torch.logspace(-4, 4, shape[-1])[:, None]
    exact = copy.deepcopy(integers).double()(x.double())
    size = x.norm(dim=-1, keepdim=True) * integers.weight.norm(dim=1)
    apart, alone = (f(x) - exact for f in (integers, lambda x: F.linear(x, *weights(integers))))
    assert integers.packed
    assert (apart.abs() / (size + 1)).max() < 1e-6
    assert apart.norm() < 2 * alone.norm()
    residual = torch.randn(exact.shape)
    torch.testing.assert_close(integers.added(x, residual), integers(x) + residual)
    assert integers(torch.full((1, 64), torch.nan)).isnan().all()
    assert (integers(torch.zeros(1, 64)) == (0 if integers.bias is None else integers.bias)).all()


def weights(product):
    return product.weight, product.bias


def test_other_weights_are_multiplied_in_float32(integers):
    integers.weight[57, 7] += 0.02
    x = torch.randn(2, 64)
    assert torch.equal(integers(x), F.linear(x, *weights(integers)))
    assert integers.packed is False


def test_a_row_does_not_depend_on_its_neighbours():
    torch.manual_seed(0)
    layer, x = Int8Linear(nn.Linear(96, 80)), torch.randn(300, 96)
    loud = torch.cat([x, 1000 * x])
    assert torch.equal(layer(loud)[:300], layer(x))
    for rows in (1, 7, 64):
        torch.testing.assert_close(layer(x[:rows]), layer(x)[:rows], atol=1e-6, rtol=1e-6)


def test_zero_and_nan_stay_what_they_are():
    layer = Int8Linear(nn.Linear(32, 32))
    assert torch.equal(layer(torch.zeros(2, 32)), layer.bias.expand(2, 32))
    assert layer(torch.full((1, 32), torch.nan)).isnan().all()


def test_a_copy_computes_the_same():
    layer, x = Int8Linear(nn.Linear(32, 24)), torch.randn(5, 32)
    assert torch.equal(copy.deepcopy(layer)(x), layer(x))
    low = LowPrecision(model(), "int8")
    decoder = NPAD(Greedy(), 5, Noise(0.5))
    assert decode(copy.deepcopy(low), SOURCE, decoder, 8) == decode(low, SOURCE, decoder, 8)


@pytest.mark.parametrize(
    "how", [{}, {"layers": 2}, {"tied": True}], ids=["one layer", "two layers", "tied"]
)
def test_the_copy_keeps_the_contract_and_its_state_is_float32(how):
    whole = model(**how)
    low = LowPrecision(whole, "int8").low
    check_model(low, SOURCE)
    assert isinstance(low.query_and_recurrence, Int8Linear)
    assert isinstance(low.energy, Product)  # one output
    assert isinstance(whole.query_and_recurrence, Product)
    logits, state = low.step(low.start(SOURCE), torch.zeros(len(SOURCE), dtype=torch.long))
    assert (logits.dtype, state.hidden.dtype) == (torch.float32, torch.float32)


def test_a_layer_in_two_places_stays_one():
    layer = nn.Linear(20, 20)
    first, second = model = nn.ModuleList([nn.Sequential(layer), nn.Sequential(layer)])
    quantise(model)
    assert isinstance(first[0], Int8Linear)
    assert first[0] is second[0]


def test_a_device_without_it_is_told_what_to_do(monkeypatch):
    with pytest.raises(
        InvalidInput,
        match="precision 'int8' needs a CPU and the model is on cuda:0; use 'bfloat16'",
    ):
        ensure_int8(SimpleNamespace(name="the model", device="cuda:0"))
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    with pytest.raises(
        InvalidInput, match="needs a torch built with oneDNN; use 'float32' with this one"
    ):
        LowPrecision(model(), "int8")
