"""Where to compute: a device by its name, and the precisions it knows."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from npad.engine.pytree import Tree, mapped
from npad.errors import InvalidInput, brief

PRECISIONS = {  # of states; int8 is of weights alone
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "int8": torch.float32,
}


def device_named(name: str | torch.device, what: str = "device") -> torch.device:
    """A device that is there; `auto` is a GPU if there is one. what: to call it in a message."""
    if isinstance(name, str) and name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError, ValueError, OverflowError) as error:
        raise InvalidInput(f"{what} must be cpu, cuda or auto, not {brief(name)}") from error
    if device.type not in ("cpu", "cuda"):
        raise InvalidInput(f"{what} must be cpu, cuda or auto, not {str(device)!r}")
    there = torch.cuda.device_count() if device.type == "cuda" else 1
    if device.type == "cuda" and (device.index or 0) >= there:
        raise InvalidInput(f"{what} {name}: torch can use {there} GPUs on this machine; take another, or cpu")
    return device


def sent(x: Tensor, device: torch.device) -> Tensor:
    """A tensor of the CPU there; a GPU at work is not waited for."""
    return x if device.type == "cpu" else x.pin_memory().to(device, non_blocking=True)


def fetched(tree: Tree) -> Tree:
    """Tensors of a GPU on the CPU: all on their way at once, and waited for once."""
    here = mapped(tree, lambda x: x.to("cpu", non_blocking=True))
    torch.cuda.current_stream().synchronize()
    return here


def on(device: torch.device) -> AbstractContextManager[Any]:
    """While this lasts, kernels and graphs without a device of their own go to this one."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def ensure_computes(device: torch.device, precision: str) -> None:
    """Refuse a precision that a device cannot multiply in; it is asked to."""
    try:
        one = torch.zeros(8, 8, device=device).to(PRECISIONS[precision])
        torch.mm(one, one)
    except RuntimeError as error:
        reason = str(error).splitlines()[0]
        raise InvalidInput(f"{device} cannot compute in {precision}; take another precision ({reason})") from error
