"""Linear layers in int8, for a CPU: a quarter of the bytes, and products several times as fast.

Each row of the weights is stored as integers from −127 to 127 and a scale, and each row of the
input is quantised in the same way as it arrives:

    W x + b ≈ scale(x) · scale(W) · (Q(W) Q(x)) + b
    Q(x) = round(x / scale(x))        scale(x) = max |x| / 127

Integer sums are exact and every row has its own scale, so that a row's result does not depend on
the other rows of the batch.
"""

from __future__ import annotations

import copy
from typing import Any, Self

import torch
from torch import Tensor, nn

from npad.engine.devices import INT8_ALL
from npad.errors import InvalidInput
from npad.model import device_of, name_of
from npad.models.linear import Product, biases_of, product_of

# Outputs; with fewer, most of the time goes to reading the input, and quantising reads it again.
MIN_INT8_OUTPUTS = 16
PLAIN: tuple[Any, ...] = ("none", [], "")  # nothing follows a product within its kernel
ALL_INT8 = f"+{INT8_ALL}"  # ends the name of a model that runs in int8
SCALE = ".scale"  # appended to a stored matrix's name for the scales of its rows


class Int8Linear(nn.Module):
    """A linear layer in int8, within about 0.5 % of the size of its output; float32 in and out."""

    multiplies = True

    def __init__(self, *layers: Any) -> None:
        """Quantise layers that read the same input: `nn.Linear`s, `Product`s or `Int8Linear`s."""
        super().__init__()
        rows = [_rows(layer) for layer in layers]
        weight, scale = (torch.cat(parts) for parts in zip(*rows, strict=True))
        biases = [bias.detach().float() for bias in biases_of(list(layers))]
        self.out_features, self.in_features = weight.shape
        self.weight: Tensor
        self.scale: Tensor
        self.bias: Tensor | None
        self.register_buffer("weight", weight)
        self.register_buffer("scale", scale)
        self.register_buffer("bias", torch.cat(biases) if biases else None)
        self._pack()

    def _pack(self) -> None:
        """Pack the weights for the processor."""
        # Without VNNI, the processor's sums of two products overflow 16 bits unless inputs have 7.
        self.levels = 127 if torch.cpu._is_vnni_supported() else 63
        packed = torch.ops.onednn.qlinear_prepack(self.weight, None)
        self.packed = packed, self.scale, torch.zeros(self.out_features, dtype=torch.long)
        self.largest = torch.tensor(float(self.levels))
        self.zero = self.largest + 1.5  # the conversion to uint8 rounds down

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Share the packed weights, which have no storage to copy and never change."""
        return copy.copy(self)

    def forward(self, x: Tensor) -> Tensor:
        rows = x.detach().reshape(-1, self.in_features)
        largest = rows.abs().amax(1, keepdim=True).clamp_(min=1e-12)
        levels = self.levels
        quantised = torch.addcmul(self.zero, rows, torch.div(self.largest, largest)).to(torch.uint8)
        output: Tensor = torch.ops.onednn.qlinear_pointwise.default(
            quantised, 1 / levels, levels + 1, *self.packed, None, 1.0, 0, torch.float32, *PLAIN
        )
        if self.bias is None:
            output = output.mul_(largest)
        else:
            output = torch.addcmul(self.bias, output, largest, out=output)
        return output.view(*x.shape[:-1], self.out_features)


def _rows(layer: Any) -> tuple[Tensor, Tensor]:
    """Return a layer's weight in int8 and the scales of its rows."""
    if isinstance(layer, Int8Linear):
        return layer.weight, layer.scale
    return quantise_rows(layer.weight.detach().float())


def int8_of(layers: list[Any]) -> Int8Linear | Product:
    """Return one layer for layers that read the same input, in int8 unless it has few outputs."""
    if len(layers) == 1 and type(layers[0]) is Int8Linear:
        return layers[0]
    few = sum(layer.out_features for layer in layers) < MIN_INT8_OUTPUTS
    return product_of(layers) if few else Int8Linear(*layers)


def quantise_rows(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Quantise each row to integers from −127 to 127: int8 [rows, columns], scales [rows]."""
    scale = weight.abs().amax(1).clamp(min=1e-12) / 127
    return torch.round(weight / scale[:, None]).to(torch.int8), scale


def quantise(model: nn.Module) -> None:
    """Replace the linear layers of a model by `Int8Linear`; a shared layer stays shared.

    Raises:
        InvalidInput: the model's device has no int8 products.
    """
    ensure_int8(model)
    replacements: dict[Any, Int8Linear] = {}
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            linear = type(child) is nn.Linear or type(child) is Product
            if linear and child.out_features >= MIN_INT8_OUTPUTS:  # type: ignore[operator]
                if child not in replacements:
                    replacements[child] = Int8Linear(child)
                setattr(parent, name, replacements[child])


def ensure_int8(model: Any) -> None:
    """Refuse a model whose device has no int8 products."""
    device = device_of(model)
    if device.type != "cpu":
        raise InvalidInput(
            f"precision 'int8' needs a CPU and {name_of(model)} is on {device}; use 'bfloat16'"
        )
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        raise InvalidInput(
            "precision 'int8' needs a torch built with oneDNN; use 'float32' with this one"
        )


def pack_weights(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Quantise matrices to int8, each with a scale per row; keep vectors unchanged.

    Convolutions are stored in float16, since their errors add up from layer to layer.
    """
    packed: dict[str, Tensor] = {}
    for name, weight in weights.items():
        if weight.dim() != 2:
            packed[name] = weight if weight.dim() < 2 else weight.to(torch.float16)
            continue
        packed[name], packed[name + SCALE] = quantise_rows(weight)
    return packed


def unpack_weights(packed: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return float32 weights, each within half its row's scale of the original."""
    return {
        name: (weight.to(torch.float32).flatten(1) * packed[name + SCALE][:, None]).view_as(weight)
        if weight.dtype == torch.int8
        else weight
        for name, weight in packed.items()
        if not name.endswith(SCALE)
    }
