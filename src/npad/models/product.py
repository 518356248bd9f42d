"""Linear layers as they are decoded with: several matrices of one vector as one, in parts where a GPU likes that."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from npad.kernels import fused


class Product(nn.Module):
    """x W + b. On a GPU products in float32 are made of three in bfloat16 (see `npad.kernels.split`)."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.bias = None if bias is None else nn.Parameter(bias, requires_grad=False)
        self.out_features, self.in_features = weight.shape
        self.parts: Tensor | None = None  # of the weight; made when first needed

    @classmethod
    def stacked(cls, weights: list[Tensor], biases: list[Tensor]) -> Product:
        """Products with several matrices of one vector as one."""
        weight = torch.cat([one.detach() for one in weights])
        return cls(weight, torch.cat([one.detach() for one in biases]) if biases else None)

    def forward(self, x: Tensor) -> Tensor:
        if not fused(x) or x.dtype != torch.float32 or x.numel() == self.in_features:  # one row is read, not multiplied
            return F.linear(x, self.weight, self.bias)
        from npad.kernels.split import input_parts, weight_parts

        if self.parts is None:
            self.parts = weight_parts(self.weight, self.bias)
        made = torch.mm(input_parts(x.flatten(0, -2)), self.parts, out_dtype=torch.float32)
        return made.view(*x.shape[:-1], -1)

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        self.parts = None  # another device or precision has its own
        return super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
