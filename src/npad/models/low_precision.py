"""Noisy chains in fewer bits: they are noisy on purpose, and the clean model judges what they find."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from npad.engine.devices import PRECISIONS, ensure_computes
from npad.engine.pytree import tree_map
from npad.errors import InvalidInput
from npad.model import Capabilities, Perturb, State, Wrapper, device_of, name_of
from npad.models.quantised import quantise
from npad.validation import ensure_choice


class LowPrecision(Wrapper[State]):
    """A model with a copy of itself in lower precision, which NPAD's noisy chains run on.

    All else is the model's own: the clean chain, every other decoder, and every score. Costs the memory of the copy.
    int8: linear layers alone, on a CPU; states, and all between two layers, stay in float32.
    """

    def __init__(self, model: Any, precision: str = "bfloat16") -> None:
        ensure_choice("precision", precision, tuple(PRECISIONS))
        if not isinstance(model, nn.Module):
            raise InvalidInput(
                f"{name_of(model)} is no torch module, and has no weights to lower to {precision}"
            )
        ensure_computes(device_of(model), precision)
        self.dtype = PRECISIONS[precision]
        self.low = copy.deepcopy(model).to(self.dtype)
        if precision == "int8":
            quantise(self.low)
        self.model: Any = model
        self.name = f"{name_of(model)}+{precision}"

    @property
    def capabilities(self) -> Capabilities:
        """The model's own, whose states these are, and the copy."""
        return replace(
            Capabilities.of(self.model), name=self.name, low_precision=self.low_precision
        )

    def start(self, source: Any) -> State:
        return self.model.start(source)  # type: ignore[no-any-return]

    def step(
        self, state: State, tokens: Tensor, perturb: Perturb | None = None
    ) -> tuple[Tensor, State]:
        return self.model.step(state, tokens, perturb)  # type: ignore[no-any-return]

    def select(self, state: State, rows: Tensor) -> State:
        return self.model.select(state, rows)  # type: ignore[no-any-return]

    def low_precision(self, state: State) -> tuple[Any, Any]:
        """Return the copy, and a state of the model as a state of the copy."""
        return self.low, lowered(state, self.dtype)


def lowered(state: Any, dtype: torch.dtype) -> Any:
    """A state with its floating-point tensors in another precision."""
    return tree_map(lambda x: x.to(dtype) if x.is_floating_point() else x, state)
