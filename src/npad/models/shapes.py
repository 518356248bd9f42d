"""Networks as shapes alone: to check sizes without memory for weights."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode


class _Undrawn(TorchFunctionMode):
    """Leaves weights as they were allocated: what layers draw them by does nothing."""

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if getattr(function, "__module__", None) == "torch.nn.init":
            return args[0] if args else kwargs["tensor"]
        return function(*args, **(kwargs or {}))


@contextmanager
def without_weights() -> Iterator[None]:
    """Build networks on the meta device, whose weights have shapes and take no memory.

    Drawing values there would do nothing, but import torch's compiler: a second of CPU time.
    """
    with torch.device("meta"), _Undrawn():
        yield
