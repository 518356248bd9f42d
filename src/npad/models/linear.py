"""Linear layers for inference: stacked matrices, in the layout that the processor reads fastest."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from npad.kernels import fused

MIN_PACKED_ROWS = 3  # rows; with fewer, a CPU multiplies as fast with unpacked weights
MIN_PACKED_OUTPUTS = 16  # outputs; with fewer, there is nothing to pack
MAX_PREPARED_BYTES = 1 << 30  # of a model's weights; those of a larger one are not held twice
MIN_PACKED_NUMBERS = 1 << 16  # of the weight; with fewer, a packed product takes longer


class Product(nn.Module):
    """A linear layer for inference: x Wᵀ + b.

    A CPU multiplies with packed weights (oneDNN). A GPU computes a float32 product as three in
    bfloat16 (see `npad.kernels.layers`).
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.bias = None if bias is None else nn.Parameter(bias, requires_grad=False)
        self.out_features, self.in_features = weight.shape
        self.kernel_weight: Tensor | None = None  # split or packed, computed on first use

    @classmethod
    def stacked(cls, weights: list[Tensor], biases: list[Tensor]) -> Product:
        """Return the products of one input with several matrices as a single layer.

        Args:
            weights: each [outputs, inputs], with the same inputs.
            biases: each [outputs], one for each weight; or none.
        """
        weight = torch.cat([block.detach() for block in weights])
        bias = torch.cat([block.detach() for block in biases]) if biases else None
        return cls(weight, bias)

    def forward(self, x: Tensor) -> Tensor:
        rows, is_float32 = x.numel() // self.in_features, x.dtype == torch.float32
        if is_float32 and fused(x) and rows != 1:  # a single row is bound by memory, not arithmetic
            return self._split(x)
        large = self.weight.numel() >= MIN_PACKED_NUMBERS
        packable = large and rows >= MIN_PACKED_ROWS and self.out_features >= MIN_PACKED_OUTPUTS
        on_cpu = x.device.type == "cpu"
        if is_float32 and packable and on_cpu and not x.requires_grad and can_pack():
            return self._packed(x)
        return F.linear(x, self.weight, self.bias)

    def _split(self, x: Tensor) -> Tensor:
        from npad.kernels.layers import input_parts, weight_parts

        if self.kernel_weight is None:
            self.kernel_weight = weight_parts(self.weight, self.bias)
        parts = input_parts(x.flatten(0, -2))
        output = torch.mm(parts, self.kernel_weight, out_dtype=torch.float32)
        return output.view(*x.shape[:-1], -1)

    def _packed(self, x: Tensor) -> Tensor:
        if self.kernel_weight is None:
            self.kernel_weight = torch.ops.mkldnn._reorder_linear_weight(self.weight.detach())
        output: Tensor = torch.ops.mkldnn._linear_pointwise(
            x, self.kernel_weight, self.bias, "none", [], ""
        )
        return output

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        self.kernel_weight = None  # its layout depends on the device and the precision
        return super()._apply(fn, recurse)  # type: ignore[no-untyped-call]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "kernel_weight": None}  # packed weights have no storage to copy


def prepare(model: nn.Module) -> None:
    """Replace the linear layers of a model in float32 by `Product`s of the same weights.

    Only for a model that belongs to npad: a product keeps a copy of its weights in the layout that
    it multiplies fastest, which later changes of the weights do not reach.
    """
    weights = {id(weight): weight for weight in model.parameters()}.values()
    large = sum(weight.nbytes for weight in weights) > MAX_PREPARED_BYTES
    if large or any(weight.dtype != torch.float32 for weight in weights):
        return
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is nn.Linear:
                product: Any = Product(child.weight, child.bias)
                product.weight, product.bias = child.weight, child.bias  # a tied weight stays tied
                setattr(parent, name, product)


@cache
def can_pack() -> bool:
    """Return whether this torch packs weights for this processor."""
    size = MIN_PACKED_OUTPUTS
    try:
        weight = torch.ops.mkldnn._reorder_linear_weight(torch.ones(size, size))
        output = torch.ops.mkldnn._linear_pointwise(
            torch.ones(MIN_PACKED_ROWS, size), weight, None, "none", [], ""
        )
        return bool((output == size).all())
    except (AttributeError, RuntimeError, TypeError):
        return False
