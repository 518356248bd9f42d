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
from npad.models.linear import LinearLayer, Product, biases_of, product_of

# Outputs; with fewer, most of the time goes to reading the input, and quantising reads it again.
MIN_INT8_OUTPUTS = 16
PLAIN: tuple[Any, ...] = ("none", [], "")  # nothing follows a product within its kernel
ALL_INT8 = f"+{INT8_ALL}"  # ends the name of a model that runs in int8
MIN_INTEGERS = 1 << 22  # weights; a smaller matrix is as fast in float32
PART = 254  # the ratio of two parts of a number
SCALE = ".scale"  # appended to a stored matrix's name for the scales of its rows


class Int8Linear(LinearLayer):
    """A linear layer in int8, within about 0.5 % of the size of its output; float32 in and out."""

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

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Share the packed weights, which have no storage to copy and never change."""
        return copy.copy(self)

    def forward(self, x: Tensor) -> Tensor:
        rows, levels, bias = x.detach(), self.levels, self._buffers["bias"]
        if rows.dim() != 2:
            rows = rows.reshape(-1, self.in_features)
        largest = rows.abs().amax(1, keepdim=True).clamp_(min=1e-12)
        # torch is several times as fast in these steps as in addcmul and a conversion to uint8.
        quantised = rows.mul(levels / largest).round_().to(torch.int8)
        unsigned = quantised.view(torch.uint8).add_(levels + 1)
        output: Tensor = torch.ops.onednn.qlinear_pointwise.default(
            unsigned, 1 / levels, levels + 1, *self.packed, None, 1.0, 0, torch.float32, *PLAIN
        )
        if bias is None:
            output = output.mul_(largest)
        else:
            output = torch.addcmul(bias, output, largest, out=output)
        if x.dim() == 2:
            return output
        return output.view(*x.shape[:-1], self.out_features)


def _rows(layer: Any) -> tuple[Tensor, Tensor]:
    """Return a layer's weight in int8 and the scales of its rows."""
    own = isinstance(layer, Int8Linear)
    return (layer.weight, layer.scale) if own else quantise_rows(layer.weight.detach().float())


def int8_of(layers: list[Any]) -> Int8Linear | Product:
    """Return one layer for layers that read the same input, in int8 unless it has few outputs."""
    if len(layers) == 1 and type(layers[0]) is Int8Linear:
        return layers[0]
    few = sum(layer.out_features for layer in layers) < MIN_INT8_OUTPUTS
    return product_of(layers) if few else Int8Linear(*layers)


class IntegerProduct(Product):
    """A `Product` that reads fewer bytes, if its weights are 8-bit integers.

    Weights of files in 8 bits are integers from −127 to 127 times a unit. With a few rows, most of
    the time goes to reading them:

    - `Halves` reads half the bytes: half precision holds these integers exactly.
    - `Integers` reads a quarter, for a large matrix. With 32,000 × 256 weights, a single row takes
      0.18 ms of a core of an AMD EPYC (Zen 5), and 0.61 ms in float32 (`python
      benchmarks/firefox.py --layer`).

    Both are as precise as float32.
    """

    packed: Any = None  # Halves or Integers; False if there are none; None if it is not known yet
    blocks: tuple[int, ...] = ()  # outputs of each of several stacked matrices

    @classmethod
    def stacked(cls, weights: list[Tensor], biases: list[Tensor]) -> Self:
        product = super().stacked(weights, biases)
        product.blocks = tuple(map(len, weights))
        return product

    def forward(self, x: Tensor) -> Tensor:
        packed = self._packed_for(x)
        return packed.multiply(x) if packed else super().forward(x)

    def added(self, x: Tensor, residual: Tensor) -> Tensor:
        packed = self._packed_for(x)
        return packed.add(x, residual) if packed else super().added(x, residual)

    def _packed_for(self, x: Tensor) -> Any:
        """Return the packed integers if they multiply x faster than float32, or None."""
        if x.dtype != torch.float32 or not x.is_cpu or x.requires_grad:
            return None
        if self.packed is None:
            self.packed = self._packed_integers()
        packed = self.packed
        return packed if packed and x.numel() <= packed.most_rows * self.in_features else None

    def _packed_integers(self) -> Halves | Integers | bool:
        """Return the packed integers; False if the weights are others, or without kernels."""
        weight = self.weight.detach()
        blocks = torch.split(weight, list(self.blocks or weight.shape[:1]))
        units = torch.cat([(block.abs().max() / 127).expand(len(block)) for block in blocks])
        integers = (weight / units[:, None]).round()
        if not bool(((weight / units[:, None] - integers).abs() < 1e-4).all()):
            return False
        bias = None if self.bias is None else self.bias.detach()
        # Without VNNI, sums of products of 8 bits would overflow.
        large = weight.numel() >= MIN_INTEGERS and torch.cpu._is_vnni_supported()
        try:
            return (Integers if large else Halves)(integers, units, bias)
        except (AttributeError, RuntimeError):  # this torch or this processor has no such kernel
            return False

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        self.packed = None
        return super()._apply(fn, recurse)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "packed": None}


class Halves:
    """Products of rows in float32 with integers in half precision, times a unit per output."""

    most_rows = 128  # with more, float32 is as fast

    def __init__(self, integers: Tensor, units: Tensor, bias: Tensor | None) -> None:
        self.weight = torch.ops.quantized.linear_prepack_fp16(integers, None)
        product = torch.ops.quantized.linear_dynamic_fp16.default
        # torch looks for a weight without values, which takes longer than a small operation
        self.product = getattr(product, "_op", product)
        self.units, self.bias = units, units.new_zeros(1) if bias is None else bias
        self.unit = float(units[0]) if bool((units == units[0]).all()) else None

    def multiply(self, x: Tensor) -> Tensor:
        return torch.addcmul(self.bias, self.product(x, self.weight), self.units)

    def add(self, x: Tensor, residual: Tensor) -> Tensor:
        if self.unit is None:
            return self.multiply(x).add_(residual)
        product: Tensor = self.product(x, self.weight)
        return torch.add(residual, product, alpha=self.unit).add_(self.bias)


class Integers:
    """Products of rows in float32 with 8-bit integers, times a unit per output.

    Each row is written as s · (a + b / 254 + c / 254²) with integers a, b, c from −127 to 127,
    which are three rows of one product in integers.
    """

    most_rows = 16  # with more, float32 is as fast

    def __init__(self, integers: Tensor, units: Tensor, bias: Tensor | None) -> None:
        packed = torch.ops.onednn.qlinear_prepack(integers.to(torch.int8), None)
        self.weight = packed, units.clone(), torch.zeros(len(units), dtype=torch.long)
        self.bias = bias

    def multiply(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, x.shape[-1])
        scale = rows.abs().amax(1, keepdim=True).clamp_(min=1e-30) / 127
        rest, parts = rows / scale, []
        for _ in range(3):
            parts.append(rest.round())
            rest = (rest - parts[-1]) * PART
        unsigned = torch.cat(parts).to(torch.int8).view(torch.uint8).add_(128)
        product = torch.ops.onednn.qlinear_pointwise.default(
            unsigned, 1.0, 128, *self.weight, None, 1.0, 0, torch.float32, *PLAIN
        )
        a, b, c = product.chunk(3)
        total: Tensor = a.add_(b.add_(c, alpha=1 / PART), alpha=1 / PART)
        if self.bias is None:
            total = total.mul_(scale)
        else:
            total = torch.addcmul(self.bias, total, scale, out=total)
        return total.view(*x.shape[:-1], -1)

    def add(self, x: Tensor, residual: Tensor) -> Tensor:
        return self.multiply(x).add_(residual)


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
            linear = type(child) in (nn.Linear, Product, IntegerProduct)
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
