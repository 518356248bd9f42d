"""Weights as the processor reads them multiply as they are."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch.nn import functional as F

from npad.models import linear as product
from npad.models.linear import MIN_PACKED_OUTPUTS, MIN_PACKED_ROWS, Product

here = product.can_pack()


@pytest.fixture(params=[True, False], ids=["packed", "as they are"])
def kind(request, monkeypatch):
    if request.param and not here:
        pytest.skip("this torch packs no weights")
    monkeypatch.setattr(product, "can_pack", lambda: request.param)
    monkeypatch.setattr(product, "MIN_PACKED_NUMBERS", 0)
    return request.param


def build(out=40, bias=True):
    torch.manual_seed(0)
    return Product(torch.randn(out, 24), torch.randn(out) if bias else None)


@pytest.mark.parametrize(
    "shape", [(0, 24), (1, 24), (MIN_PACKED_ROWS, 24), (50, 24), (2, 3, 24), (4, 1, 5, 24)], ids=str
)
@pytest.mark.parametrize("bias", [True, False])
def test_rows_of_any_shape(kind, shape, bias):
    made, x = build(bias=bias), torch.randn(shape)
    torch.testing.assert_close(made(x), F.linear(x, made.weight, made.bias))
    x = torch.randn(*shape[:-1], 48)[..., ::2]
    torch.testing.assert_close(made(x), F.linear(x, made.weight, made.bias))


def test_weights_are_packed_where_that_is_faster(kind, monkeypatch):
    for rows, out in ((MIN_PACKED_ROWS - 1, 40), (MIN_PACKED_ROWS, MIN_PACKED_OUTPUTS - 1)):
        made = build(out)
        made(torch.randn(rows, 24))
        assert made.kernel_weight is None
    made.cached = False
    made(torch.randn(1, 24))
    assert made.kernel_weight is None  # it has few outputs
    made = build()
    made.cached = False  # its weights come from memory
    made(torch.randn(1, 24))
    assert (made.kernel_weight is not None) == kind
    for smallest, packed in ((40 * 24 + 1, False), (40 * 24, kind)):
        monkeypatch.setattr(product, "MIN_PACKED_NUMBERS", smallest)
        made = build()
        made(torch.randn(MIN_PACKED_ROWS, 24))
        assert (made.kernel_weight is not None) == packed


@pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))], ids=["copy", "pickle"]
)
def test_products_can_be_copied_after_use(kind, copied):
    made, x = build(), torch.randn(5, 24)
    expected = made(x)
    assert torch.equal(copied(made)(x), expected)
    assert made.double()(x.double()).dtype == torch.float64


def test_a_torch_that_packs_nothing_multiplies(monkeypatch):
    def fails(*given):
        raise RuntimeError("no kernel")

    monkeypatch.setattr(torch.ops.mkldnn, "_linear_pointwise", fails)
    assert not product.can_pack.__wrapped__()


WAYS = [
    (0, torch.float32, True),
    (1, torch.float32, False),
    (2, torch.float32, True),
    (2, torch.float64, False),
]


@pytest.mark.parametrize(("rows", "dtype", "way"), WAYS)
def test_a_gpu_multiplies_rows_of_float32_in_parts(rows, dtype, way, monkeypatch):
    used = []
    monkeypatch.setattr(product, "fused", lambda x: True)
    monkeypatch.setattr(Product, "_split", lambda self, x: used.append(len(x)))
    build().to(dtype)(torch.randn(rows, 24, dtype=dtype))
    assert used == [rows] * way


def test_inputs_that_need_gradients_are_not_packed(kind):
    made, x = build(), torch.randn(5, 24, requires_grad=True)
    made(x).sum().backward()
    torch.testing.assert_close(x.grad, made.weight.sum(0).expand(5, -1))
