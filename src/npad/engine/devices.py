"""Devices by name, the precisions they support, and asynchronous copies."""

from __future__ import annotations

import platform
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from npad.engine.pytree import Tree, tree_leaves, tree_map
from npad.errors import InvalidInput, ModelError
from npad.model import name_of, tensors_of
from npad.validation import brief

PRECISIONS = {  # the dtype of states; int8 applies to weights only
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "int8": torch.float32,
}
INT8_ALL = "int8-all"  # the model itself in int8, and not NPAD's noisy chains alone
MODEL_PRECISIONS = (*PRECISIONS, INT8_ALL)


def device_named(name: str | torch.device, option: str = "device") -> torch.device:
    """Return the device of that name; `auto` is a GPU if there is one.

    Args:
        name: "cpu", "cuda", "cuda:1" or "auto".
        option: the name of the argument, for error messages.

    Raises:
        InvalidInput: the name is not a device name, or this machine has no such device.
    """
    rule = f"{option} must be cpu, cuda or auto, not"
    if isinstance(name, str) and name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError, ValueError, OverflowError) as error:
        raise InvalidInput(f"{rule} {brief(name)}") from error
    if device.type not in ("cpu", "cuda"):
        raise InvalidInput(f"{rule} {str(device)!r}")
    gpus = torch.cuda.device_count()
    if device.type == "cuda" and (device.index or 0) >= gpus:
        raise InvalidInput(
            f"{option} {name}: torch can use {gpus} GPUs on this machine; use another, or cpu"
        )
    return device


def machine_name(device: torch.device) -> str:
    """Return what computes: the name of a GPU, or of the CPU with the number of threads."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    threads = torch.get_num_threads()
    return f"{_processor()}, {threads} thread{'s' if threads > 1 else ''}"


@cache
def _processor() -> str:
    """Return the name of the CPU."""
    facts = Path("/proc/cpuinfo")
    lines = facts.read_text().splitlines() if facts.is_file() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


def to_device(x: Tensor, device: torch.device) -> Tensor:
    """Copy a CPU tensor to `device` asynchronously."""
    return x if device.type == "cpu" else x.pin_memory().to(device, non_blocking=True)


def to_cpu(tree: Tree) -> Tree:
    """Copy tensors from a GPU to the CPU with a single synchronisation."""
    copies = tree_map(lambda x: x.to("cpu", non_blocking=True), tree)
    torch.cuda.current_stream().synchronize()
    return copies


def ensure_device(model: Any, state: object) -> None:
    """Refuse a model whose state is on another device than npad takes the model to be on.

    Raises:
        ModelError: names both devices, and the attribute to add.
    """
    if next(tensors_of(model), None) is not None or getattr(model, "device", None) is not None:
        return
    for tensor in tree_leaves(state):
        if isinstance(tensor, Tensor) and tensor.device.type != "cpu":
            raise ModelError(
                f"{name_of(model)}.start returned tensors on {tensor.device}, and npad finds no "
                "tensors of the model there: give the model an attribute `device`"
            )


def current_device(device: torch.device) -> AbstractContextManager[Any]:
    """Make `device` the current CUDA device, on which kernels and graphs run."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def ensure_computes(device: torch.device, precision: str) -> None:
    """Raise InvalidInput if a device cannot multiply matrices in a precision; tries it."""
    try:
        matrix = torch.zeros(8, 8, device=device).to(PRECISIONS[precision])
        torch.mm(matrix, matrix)
    except RuntimeError as error:
        reason = str(error).splitlines()[0]
        raise InvalidInput(
            f"{device} cannot compute in {precision}; use another precision ({reason})"
        ) from error
