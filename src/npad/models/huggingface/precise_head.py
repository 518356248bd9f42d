"""Logits in float32 from a model whose weights are in 16 bits.

Such a model rounds its logits to 16 bits, which is too coarse for log-probabilities: of 50 in
bfloat16, neighbouring numbers are 0.25 apart. The products of 16-bit numbers are exact in float32.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import get_ident
from typing import Any

import torch
from torch import Tensor, nn


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
