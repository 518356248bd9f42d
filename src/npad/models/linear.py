"""Linear layers for inference: stacked matrices, in the layout that the processor reads fastest."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, Self
from weakref import WeakKeyDictionary, ref

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from npad.kernels import fused

MIN_PACKED_ROWS = 3  # rows; with fewer, a weight that fits a cache multiplies as fast unpacked
MIN_PACKED_OUTPUTS = 16  # outputs; with fewer, there is nothing to pack
MAX_PREPARED_BYTES = 1 << 30  # of a model's weights; those of a larger one are not held twice
MIN_PACKED_NUMBERS = 1 << 16  # of the weight; with fewer, a packed product takes longer
MIN_PACKED_NUMBERS_OF_A_ROW = 1 << 19  # with one or two rows, if the model fits a cache
MAX_CACHED_BYTES = 1 << 25  # of a model's weights; those of a larger one come from memory


class LinearLayer(nn.Module):
    """A linear layer for inference."""

    multiplies = True  # it does nothing else, as `Products` needs to know

    def added(self, x: Tensor, residual: Tensor) -> Tensor:
        """Return the residual + x Wᵀ + b."""
        return residual + self.forward(x)  # type: ignore[no-any-return]


class Product(LinearLayer):
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
        self.frees = False  # whether packing frees the weight as it was
        self.cached = True  # whether the processor's cache may hold the whole model

    @classmethod
    def stacked(cls, weights: list[Tensor], biases: list[Tensor]) -> Self:
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
        parameters = self._parameters  # looked up here, they take a tenth of the time
        few = rows < MIN_PACKED_ROWS and self.cached and "weight" in parameters
        smallest = MIN_PACKED_NUMBERS_OF_A_ROW if few else MIN_PACKED_NUMBERS
        if (
            is_float32
            and self.in_features * self.out_features >= smallest
            and self.out_features >= MIN_PACKED_OUTPUTS
            and x.device.type == "cpu"
            and not x.requires_grad
            and can_pack()
        ):
            return self._packed(x)
        weight: Tensor | None = parameters.get("weight")
        if weight is None:  # it was freed
            weight = self.weight
        return F.linear(x, weight, parameters.get("bias"))

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
            if self.frees:
                del self._parameters["weight"]
        output: Tensor = torch.ops.mkldnn._linear_pointwise.default(
            x, self.kernel_weight, self._parameters.get("bias"), "none", [], ""
        )
        return output

    def __getattr__(self, name: str) -> Any:
        """Unpack a weight that was freed."""
        packed = vars(self).get("kernel_weight")
        if name == "weight" and packed is not None and "weight" not in self._parameters:
            return packed.to_dense()
        return super().__getattr__(name)

    def _unpack(self) -> None:
        """Hold the weight as it was, and not in a layout of the device and the precision."""
        if "weight" not in self._parameters:
            self._parameters["weight"] = nn.Parameter(self.weight, requires_grad=False)
        self.kernel_weight = None

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        self._unpack()
        return super()._apply(fn, recurse)  # type: ignore[no-untyped-call]

    def __getstate__(self) -> dict[str, Any]:
        parameters = {"weight": nn.Parameter(self.weight, requires_grad=False), **self._parameters}
        state = {"kernel_weight": None, "_parameters": parameters}
        return self.__dict__ | state  # packed weights have no storage to copy


def prepare(model: nn.Module) -> None:
    """Replace the linear layers of a model in float32 by `Product`s of the same weights.

    Only for a model that belongs to npad: a product has its weights in the layout that it
    multiplies fastest, which later changes of the weights do not reach. On a CPU it frees the
    others, unless they are tied to an embedding; on a GPU a large model stays as it is.
    """
    if not packable(model, owned=True):
        return
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is nn.Linear:
                product: Any = Product(child.weight, child.bias)
                product.weight, product.bias = child.weight, child.bias  # a tied weight stays tied
                product.frees = True
                setattr(parent, name, product)


def packable(model: nn.Module, owned: bool = False) -> bool:
    """Return whether a model's weights are in float32, and not too large to be held twice."""
    weights = [*model.parameters()]
    owned_on_cpu = owned and all(weight.device.type == "cpu" for weight in weights)
    if is_large(model) and not owned_on_cpu:
        return False
    return all(weight.dtype == torch.float32 for weight in weights)


def is_large(model: nn.Module) -> bool:
    """Return whether a model's weights are too large to be held twice."""
    return sum(weight.nbytes for weight in model.parameters()) > MAX_PREPARED_BYTES


class Products:
    """Faster layers with the weights of a model that is not npad's, which keeps its own.

    They are kept as long as the model is, and made again if a weight has changed: in place, by
    assignment, or through `data`, as a number of each matrix tells.
    """

    def __init__(self, make: Callable[[list[Any]], Any], cached: bool = True) -> None:
        self.make = make  # makes one layer of those that read the same input
        self.cached = cached  # whether the processor's cache may hold all weights
        self.made: dict[tuple[int, ...], tuple[Any, ...]] = {}  # by the ids of their weights

    def of(self, *layers: Any) -> Any:
        """Return a layer with the outputs of all given layers, one after the other."""
        own = all(type(layer) is nn.Linear for layer in layers)
        if not own and not all(getattr(layer, "multiplies", False) for layer in layers):
            raise AttributeError("a layer is not linear")
        tensors = [x for layer in layers for x in (layer.weight, layer.bias)] if own else layers
        key, state = tuple(map(id, tensors)), [*map(_fingerprint, tensors)] if own else None
        found = self.made.get(key)
        if found is None or found[1] != state:
            alive = [ref(x) for x in tensors if x is not None]
            with torch.inference_mode(False), torch.no_grad():  # they outlive the call
                made = self.make(list(layers))
            made.cached = self.cached
            found = self.made[key] = alive, state, made
        return found[2]

    def replaces(self, module: nn.Module) -> bool:
        """Return whether a module is a linear layer that nobody has changed or listens to."""
        kinds = (nn.Linear,) if self.make is product_of else (nn.Linear, Product)
        return type(module) in kinds and is_unheard(module)

    def forget(self) -> None:
        """Drop the layers of weights that are gone."""
        for key, (alive, *_) in list(self.made.items()):
            if any(weight() is None for weight in alive):
                del self.made[key]


_products: WeakKeyDictionary[nn.Module, dict[Any, Products]] = WeakKeyDictionary()


def products_of(model: nn.Module, make: Callable[[list[Any]], Any]) -> Products:
    """Return the layers kept for a model that `make` made."""
    kept = _products.setdefault(model, {})
    if make not in kept:
        size = sum(weight.nbytes for weight in model.parameters())
        kept[make] = Products(make, size <= MAX_CACHED_BYTES)
    kept[make].forget()
    return kept[make]


def product_of(layers: list[Any]) -> Product:
    """Return one product for layers that read the same input; that of one shares its weight."""
    if len(layers) == 1 and type(layers[0]) is Product:
        return layers[0]
    if len(layers) == 1:
        bias = layers[0].bias
        return Product(layers[0].weight.detach(), None if bias is None else bias.detach())
    product = Product.stacked([layer.weight for layer in layers], biases_of(layers))
    product.frees = True
    return product


def biases_of(layers: list[Any]) -> list[Tensor]:
    """Return the biases of layers, zeros where only some have one; none if none has."""
    given = [layer.bias for layer in layers if layer.bias is not None]
    if not given:
        return []
    return [given[0].new_zeros(x.out_features) if x.bias is None else x.bias for x in layers]


def view_of(model: nn.Module, products: Products) -> dict[int, Any]:
    """Return copies of a model's modules with faster linear layers, by the ids of its own.

    The copies share everything else with the model: weights, buffers and configurations.
    """
    copies: dict[int, Any] = {}
    modules = list(model.modules())
    for module in modules:
        if products.replaces(module):
            copies[id(module)] = products.of(module)
            continue
        copied = copies[id(module)] = object.__new__(type(module))
        hooks = {name: value.copy() for name, value in vars(module).items() if "_hooks" in name}
        vars(copied).update(vars(module) | hooks)
    for module in modules:
        if not products.replaces(module):
            vars(copies[id(module)])["_modules"] = {
                name: child and copies[id(child)] for name, child in module._modules.items()
            }
    return copies


def is_unheard(module: nn.Module) -> bool:
    """Return whether a module has neither hooks nor a `forward` of its own."""
    return not (module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module))


def _fingerprint(weight: Tensor | None) -> tuple[Any, ...]:
    """Return what differs once a weight has changed."""
    if weight is None:
        return ()
    version = -1 if weight.is_inference() else weight._version
    middle = tuple(size // 2 for size in weight.shape)
    return weight.data_ptr(), version, weight[middle].item() if weight.dim() > 1 else 0.0


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
