"""Linear layers in whole numbers, for a CPU: a quarter of the bytes, and products several times as fast.

A row of the weights is whole numbers from −127 to 127 and its scale, and so is each row that they are multiplied with:

    W x + b ≈ scale(x) · scale(W) · (Q(W) Q(x)) + b        Q(x) = round(x / scale(x))        scale(x) = max |x| / 127

Sums of whole numbers are exact and a row's scale is its own, so that a row's result does not depend on its neighbours.
"""

from __future__ import annotations

import copy
from typing import Any, Self

import torch
from torch import Tensor, nn

from npad.errors import InvalidInput
from npad.model import device_of, name_of
from npad.models.cgru.linear import Product

NARROW = (
    16  # outputs; with fewer, reading the input is what costs, and rounding it reads it once more
)


class Int8Linear(nn.Module):
    """What an `nn.Linear` computes, to within about half a per cent of its output's size; float32 in and out."""

    def __init__(self, linear: nn.Linear | Product) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        weight, scale = rounded(linear.weight.detach().float())
        self.weight: Tensor
        self.scale: Tensor
        self.bias: Tensor | None
        self.register_buffer("weight", weight)
        self.register_buffer("scale", scale)
        self.register_buffer("bias", None if linear.bias is None else linear.bias.detach().float())
        self._pack()

    def _pack(self) -> None:
        """In the order in which the processor reads them. Without VNNI its sums of pairs overflow above 7 bits."""
        self.levels = 127 if torch.cpu._is_vnni_supported() else 63
        self.packed = torch.ops.onednn.qlinear_prepack(self.weight, None)
        self.zeros = torch.zeros(self.out_features, dtype=torch.long)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Packed weights have no storage to copy, and never change."""
        return copy.copy(self)

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, self.in_features)
        largest = rows.abs().amax(1, keepdim=True).clamp_(min=1e-12)
        middle, most = self.levels + 1, float(self.levels)
        whole = (rows * (most / largest)).add_(middle + 0.5).to(torch.uint8)  # which rounds down
        out = torch.ops.onednn.qlinear_pointwise(
            *(
                whole,
                1 / most,
                middle,
                self.packed,
                self.scale,
                self.zeros,
                None,
            ),  # the bias comes after the scale
            *(1.0, 0, torch.float32, "none", [], ""),
        )
        out = (
            out.mul_(largest)
            if self.bias is None
            else torch.addcmul(self.bias, out, largest, out=out)
        )
        return out.view(*x.shape[:-1], self.out_features)


def rounded(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Whole numbers from −127 to 127 and a scale per row: int8 [rows, columns], float32 [rows]."""
    scale = weight.abs().amax(1).clamp(min=1e-12) / 127
    return torch.round(weight / scale[:, None]).to(torch.int8), scale


def quantise(model: nn.Module) -> None:
    """Put an `Int8Linear` in the place of each linear layer, once where a layer has several places."""
    ensure_int8(model)
    made: dict[Any, Int8Linear] = {}
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            plain = type(child) is nn.Linear or type(child) is Product
            if plain and child.out_features >= NARROW:  # type: ignore[operator]
                if child not in made:
                    made[child] = Int8Linear(child)  # type: ignore[arg-type]
                setattr(parent, name, made[child])


def ensure_int8(model: Any) -> None:
    """Refuse a device that has no products of whole numbers."""
    device = device_of(model)
    if device.type != "cpu":
        raise InvalidInput(
            f"precision 'int8' is for a CPU and {name_of(model)} is on {device}; use 'bfloat16' there"
        )
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        raise InvalidInput(
            "precision 'int8' needs a torch built with oneDNN, which this one is not; use 'float32'"
        )
