"""Hooks for the calls of one thread: noise enters the layers, and the head returns float32.

A model whose weights are in 16 bits rounds its logits to 16 bits, which is too coarse for
log-probabilities: of 50 in bfloat16, neighbouring numbers are 0.25 apart. The products of 16-bit
numbers are exact in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import get_ident
from typing import Any

import torch
from torch import Tensor, nn

from npad.errors import InvalidInput
from npad.model import Perturb


@dataclass(frozen=True)
class Spread:
    """A perturbation of the head's input that gives each prefix several rows."""

    perturb: Perturb
    rows: Tensor  # [n], the prefix of each row

    def __call__(self, site: str, x: Tensor) -> Tensor:
        """Return n rows of x [prefixes, width] with noise at the head; x at other sites."""
        return self.perturb(site, x[self.rows]) if site == "output" else x


@contextmanager
def noise_hooks(network: Any, perturb: Callable[[str, Tensor], Tensor]) -> Iterator[None]:
    """Perturb the sites of a network in calls of this thread, inside the block."""
    thread = get_ident()

    # Hooks without keyword arguments: torch looks up again whether a hook takes them, when
    # another thread may have removed it.
    def perturb_input(site: str) -> Callable[..., Any]:
        def hook(module: nn.Module, args: tuple[Any, ...]) -> Any:
            if get_ident() != thread:
                return None
            if not args:
                raise InvalidInput(
                    f"noise cannot enter {network.name} at {site!r}, whose layers take no "
                    "positional argument; choose another site"
                )
            return noisy(site, args[0]), *args[1:]

        return hook

    def perturb_embedding(
        module: nn.Module, args: tuple[Any, ...], output: Tensor
    ) -> Tensor | None:
        return noisy("embedding", output) if get_ident() == thread else None

    def noisy(site: str, x: Tensor) -> Tensor:
        return perturb(site, x.flatten(0, -2)).view(-1, *x.shape[1:])

    handles = []
    try:
        handles.append(network.embeddings.register_forward_hook(perturb_embedding))
        for i, layer in enumerate(network.layers):
            handles.append(layer.register_forward_pre_hook(perturb_input(f"hidden.{i}")))
        handles.append(network.head.register_forward_pre_hook(perturb_input("output")))
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def float32_logits(head: nn.Module) -> Iterator[None]:
    """Let a head return logits in float32 to calls of this thread, inside the block."""
    thread = get_ident()

    def hook(module: Any, args: tuple[Tensor, ...], output: Tensor) -> Tensor | None:
        if get_ident() != thread:
            return None
        return float32_linear(args[0], module.weight, module.bias)

    handle = head.register_forward_hook(hook)
    try:
        yield
    finally:
        handle.remove()


def float32_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return W x + b in float32, of tensors in 16 bits."""
    if x.is_cuda:
        logits = torch.mm(x.flatten(0, -2), weight.t(), out_dtype=torch.float32)
        logits = logits.view(*x.shape[:-1], -1)
    else:
        logits = x.float() @ weight.float().t()
    return logits if bias is None else logits + bias
