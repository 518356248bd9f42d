"""Noisy chains in lower precision; the clean model re-scores their candidates in full precision."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from npad.engine.devices import INT8_ALL, MODEL_PRECISIONS, PRECISIONS, ensure_computes
from npad.engine.pytree import tree_map
from npad.errors import InvalidInput
from npad.model import Capabilities, State, Wrapper, device_of, name_of
from npad.models.int8 import ALL_INT8, quantise
from npad.validation import ensure_choice


class LowPrecision(Wrapper[State]):
    """A model with a copy in lower precision, which NPAD's noisy chains run on.

    The clean chain, every other decoder and every score use the model itself. The copy takes memory
    in addition.

    Args:
        model: a `torch.nn.Module`, or a model with a method `in_precision(precision)` that returns
            such a copy.
        precision: "bfloat16"; or "int8" on a CPU, which quantises the linear layers and keeps
            states and all other layers in float32.

    Raises:
        InvalidInput: the model has no weights, or its device does not compute in `precision`.
    """

    def __init__(self, model: Any, precision: str = "bfloat16") -> None:
        ensure_choice("precision", precision, tuple(PRECISIONS))
        convert = getattr(model, "in_precision", None)
        if convert is None and not isinstance(model, nn.Module):
            raise InvalidInput(
                f"{name_of(model)} is not a torch module: it has no weights to convert to "
                f"{precision}"
            )
        ensure_computes(device_of(model), precision)
        self.dtype = PRECISIONS[precision]
        self.low = (
            lowered(copy.deepcopy(model), precision) if convert is None else convert(precision)
        )
        self.model: Any = model
        self.name = f"{name_of(model)}+{precision}"

    @property
    def capabilities(self) -> Capabilities:
        """The model's, and the copy in lower precision."""
        return replace(
            Capabilities.of(self.model), name=self.name, low_precision=self.low_precision
        )

    def low_precision(self, state: State) -> tuple[Any, Any]:
        """Return the copy, and the state converted for it."""
        return self.low, cast_state(state, self.dtype)


def in_precision(model: Any, precision: str, owned: bool = True) -> Any:
    """Return a model with its noisy chains, or for "int8-all" all of it, in a precision.

    If the model is `owned` by npad, int8-all frees its weights in float32.
    """
    ensure_choice("precision", precision, MODEL_PRECISIONS)
    if precision == "float32":
        return model
    if precision != INT8_ALL:
        return LowPrecision(model, precision)
    quantised = getattr(model, "quantised", None)
    if quantised is not None:
        return quantised(owned)
    if not isinstance(model, nn.Module):
        raise InvalidInput(f"{name_of(model)} is not a torch module: it has no weights in int8")
    whole: Any = lowered(model if owned else copy.deepcopy(model), "int8")
    whole.name = name_of(model) + ALL_INT8
    return whole


def lowered(module: nn.Module, precision: str) -> nn.Module:
    """Convert the weights of a module in place, and return it."""
    module = module.to(PRECISIONS[precision])
    if precision == "int8":
        quantise(module)
    return module


def cast_state(state: Any, dtype: torch.dtype) -> Any:
    """Convert the floating-point tensors of a state to `dtype`."""
    return tree_map(lambda x: x.to(dtype) if x.is_floating_point() else x, state)
