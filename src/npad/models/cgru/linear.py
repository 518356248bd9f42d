"""Linear layers as they are decoded with: several matrices of one vector as one, and as the processor reads them."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from npad.kernels import fused

FEW = 3  # rows from which a CPU multiplies faster with packed weights
NARROW = 16  # outputs; with fewer there is nothing to pack


class Product(nn.Module):
    """x W + b. On a GPU products in float32 are made of three in bfloat16 (see `npad.kernels.split`)."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.bias = None if bias is None else nn.Parameter(bias, requires_grad=False)
        self.out_features, self.in_features = weight.shape
        self.laid_out: Tensor | None = (
            None  # the weight, in parts or packed; made when first needed
        )

    @classmethod
    def stacked(cls, weights: list[Tensor], biases: list[Tensor]) -> Product:
        """Products with several matrices of one vector as one."""
        weight = torch.cat([one.detach() for one in weights])
        return cls(weight, torch.cat([one.detach() for one in biases]) if biases else None)

    def forward(self, x: Tensor) -> Tensor:
        rows, single = x.numel() // self.in_features, x.dtype == torch.float32
        if single and fused(x) and rows != 1:  # one row is read, not multiplied
            return self._in_parts(x)
        few = rows < FEW or self.out_features < NARROW
        if single and not few and x.device.type == "cpu" and not x.requires_grad and packs():
            return self._packed(x)
        return F.linear(x, self.weight, self.bias)

    def _in_parts(self, x: Tensor) -> Tensor:
        from npad.kernels.split import input_parts, weight_parts

        if self.laid_out is None:
            self.laid_out = weight_parts(self.weight, self.bias)
        made = torch.mm(input_parts(x.flatten(0, -2)), self.laid_out, out_dtype=torch.float32)
        return made.view(*x.shape[:-1], -1)

    def _packed(self, x: Tensor) -> Tensor:
        if self.laid_out is None:
            self.laid_out = torch.ops.mkldnn._reorder_linear_weight(self.weight.detach())
        made: Tensor = torch.ops.mkldnn._linear_pointwise(
            x, self.laid_out, self.bias, "none", [], ""
        )
        return made

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        self.laid_out = None  # another device or precision has its own
        return super()._apply(fn, recurse)  # type: ignore[no-untyped-call]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "laid_out": None}  # which may have no storage to copy


@cache
def packs() -> bool:
    """Whether this torch packs weights for this processor."""
    try:
        weight = torch.ops.mkldnn._reorder_linear_weight(torch.ones(NARROW, NARROW))
        made = torch.ops.mkldnn._linear_pointwise(
            torch.ones(FEW, NARROW), weight, None, "none", [], ""
        )
        return bool((made == NARROW).all())
    except (AttributeError, RuntimeError, TypeError):
        return False
