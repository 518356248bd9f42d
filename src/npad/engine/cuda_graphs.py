"""Work on a GPU as a CUDA graph: hundreds of small kernels launched as one.

A graph works on tensors of its own: what it is given is copied there, and where a result has the shape of what was
given, each replay leaves there what the next one starts from. It is of one shape, so it is captured once a shape has
been met a few times, and kept with the model.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from npad.engine.memory import total_memory
from npad.engine.pytree import leaves, mapped, shape
from npad.errors import OutOfMemory

MEETINGS = 3  # times that a shape is met before it is captured, which takes as long as some fifty launches of it
KEPT = 64  # graphs of a model
ROOM = 0.6  # of the GPU's memory: beyond it no more are captured, since each one keeps some

Function = Callable[..., tuple[Any, ...]]


@contextmanager
def captured(model: Any) -> Iterator[Graphs | None]:
    """The graphs of a model whose work may be captured: this caller's alone until it is done. Else None."""
    if not getattr(model, "capturable", False) or not torch.is_inference_mode_enabled():
        yield None
        return
    graphs: Graphs = owner(model).__dict__.setdefault("_graphs", Graphs())
    if not graphs.lock.acquire(blocking=False):  # another thread decodes with them
        yield None
        return
    try:
        yield graphs
    finally:
        graphs.lock.release()


def owner(model: Any) -> Any:
    """The innermost model."""
    while not isinstance(model, torch.nn.Module) and hasattr(model, "model"):
        model = model.model
    return model


class Graphs:
    """The graphs of one model. A copy of the model has none."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.met: OrderedDict[Any, int | Graph] = OrderedDict()
        self.pool: Any = None
        self.last: Graph | None = None  # the one just replayed: the next steps go on with it

    def __deepcopy__(self, memo: Any) -> Graphs:
        return Graphs()

    def __reduce__(self) -> tuple[type[Graphs], tuple[()]]:
        return Graphs, ()

    def call(self, function: Function, model: Any, what: Any, *given: Any, own: bool = False) -> tuple[Any, ...]:
        """function(*given), by a graph where there is one; it depends on model, `what` and what is given alone.

        The results last until the next call of any graph; with `own`, of this one.
        """
        if self.last is not None and self.last.what == what and self.last.holds(given):
            return self.last.again()
        before, self.last = self.last, None
        weights = next(owner(model).parameters())
        key = (what, model, weights.data_ptr(), shape(given))
        try:
            known = self.met.pop(key, 0)
        except TypeError:  # something in it has no hash
            return function(*given)
        if known == MEETINGS:
            shared = before is not None and before.holds(given)
            known = self._capture(function, what, given, weights.device, shared, own)
        elif isinstance(known, int):
            known += 1
        self.met[key] = known
        if len(self.met) > KEPT:
            self.met.popitem(last=False)
        if isinstance(known, int):
            return function(*given)
        self.last = known
        return known(*given)

    def _capture(
        self, function: Function, what: Any, given: tuple[Any, ...], device: torch.device, shared: bool, own: bool
    ) -> int | Graph:
        pool = None
        if device.type == "cuda":
            if torch.cuda.memory_reserved(device) > ROOM * total_memory(device):
                return MEETINGS + 1
            self.pool = self.pool or torch.cuda.graph_pool_handle()
            pool = torch.cuda.graph_pool_handle() if own else self.pool
        try:
            return Graph(function, what, given, pool, shared)
        except (RuntimeError, OutOfMemory):  # it asks the host, as a schedule of one's own may, or does not fit
            self.pool = None
            return MEETINGS + 1


class Graph:
    """A function, recorded. What it returns are tensors of its memory pool, or its inputs, if it loops.

    shared: what is given are the inputs of a graph that it goes on from, so they may be its own, too.
    """

    def __init__(self, function: Function, what: Any, given: tuple[Any, ...], pool: Any, shared: bool) -> None:
        self.what = what
        self.given = given if shared else mapped(given, torch.clone)
        self.inputs = leaves(self.given)
        self.function = function
        if pool is None:  # on a CPU, where tests replay by calling again
            self.graph = None
            return
        self.graph = torch.cuda.CUDAGraph()
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):  # libraries set themselves up in a first call
            function(*mapped(given, torch.clone))
        torch.cuda.current_stream().wait_stream(stream)
        with torch.cuda.graph(self.graph, pool=pool, capture_error_mode="thread_local"):
            self._record()

    def _record(self) -> None:
        """Call the function on the inputs; where its result has their shape, leave it in them."""
        self.result = self.function(*self.given)
        self.loops = shape(self.result) == shape(self.given)
        if self.loops:
            copy(self.inputs, leaves(self.result))

    def __call__(self, *given: Any) -> tuple[Any, ...]:
        copy(self.inputs, leaves(given))
        return self.again()

    def holds(self, given: tuple[Any, ...]) -> bool:
        """Whether what it is to be given is what it left in its inputs."""
        return len(given) == len(self.given) and all(a is b for a, b in zip(given, self.given, strict=True))

    def again(self) -> tuple[Any, ...]:
        if self.graph is None:
            self._record()
        else:
            self.graph.replay()
        return self.given if self.loops else self.result


def copy(to: list[torch.Tensor], of: list[torch.Tensor]) -> None:
    """Copy tensors into tensors, but for those that are the same: all of a kind by one kernel."""
    kinds: dict[torch.dtype, tuple[list[torch.Tensor], list[torch.Tensor]]] = {}
    for a, b in zip(to, of, strict=True):
        if a is not b:
            left, right = kinds.setdefault(a.dtype, ([], []))
            left.append(a)
            right.append(b)
    for left, right in kinds.values():
        torch._foreach_copy_(left, right)
