"""An iteration of a search as a CUDA graph: some sixty small kernels launched as one.

A graph works on tensors of its own: what it is given is copied there, and each replay leaves there what the next one
starts from. It is of one shape, so it is captured once a shape has been met a few times, and kept with the model.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from npad.tree import leaves, mapped, shape

ROWS = 1024  # up to which a GPU waits for the launches of a step; beyond, they wait for it
MEETINGS = 24  # steps of one shape before it is captured: capturing takes as long as some fifty of them
KEPT = 64  # graphs of a model

Function = Callable[[Any, Any, Tensor], tuple[Any, Any, Tensor]]


@contextmanager
def captured(iteration: Function, model: Any) -> Iterator[Function]:
    """The iteration, by graphs where the model and the shapes allow; they are this caller's alone until it is done."""
    if not getattr(model, "capturable", False):
        yield iteration
        return
    graphs: Graphs = owner(model).__dict__.setdefault("_graphs", Graphs())
    if not graphs.lock.acquire(blocking=False):  # another thread decodes with them
        yield iteration
        return
    try:
        yield lambda *given: graphs.call(iteration, model, given)
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
        self.lock = threading.Lock()
        self.met: OrderedDict[Any, int | Graph] = OrderedDict()
        self.pool: Any = None
        self.last: Graph | None = None  # the one just replayed: nine steps of ten go on with it

    def __deepcopy__(self, memo: Any) -> Graphs:
        return Graphs()

    def call(self, iteration: Function, model: Any, given: tuple[Any, Any, Tensor]) -> tuple[Any, Any, Tensor]:
        if self.last is not None and self.last.holds(given):
            return self.last.again()
        if given[1].tokens.numel() > ROWS:
            return iteration(*given)
        weights = next(owner(model).parameters())
        key = (model, weights.data_ptr(), shape(given))
        try:
            known = self.met.pop(key, 0)
        except TypeError:  # something in it has no hash
            return iteration(*given)
        if known == MEETINGS:
            known = Graph(iteration, given, self._pool(weights.device))
        elif isinstance(known, int):
            known += 1
        self.met[key] = known
        if len(self.met) > KEPT:
            self.met.popitem(last=False)
        self.last = known if isinstance(known, Graph) else None
        return known(*given) if isinstance(known, Graph) else iteration(*given)

    def _pool(self, device: torch.device) -> Any:
        if self.pool is None and device.type == "cuda":
            self.pool = torch.cuda.graph_pool_handle()
        return self.pool


class Graph:
    """One iteration, recorded. What it returns are its own tensors: they last until the next call."""

    def __init__(self, iteration: Function, given: tuple[Any, Any, Tensor], pool: Any) -> None:
        self.given = mapped(given, torch.clone)
        self.inputs = leaves(self.given)
        self.function = iteration
        if pool is None:  # on a CPU, where tests replay by calling again
            self.graph = None
            self._record()
            return
        self.graph = torch.cuda.CUDAGraph()
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):  # libraries set themselves up in a first call
            iteration(*mapped(given, torch.clone))
        torch.cuda.current_stream().wait_stream(stream)
        with torch.cuda.graph(self.graph, pool=pool, capture_error_mode="thread_local"):
            self._record()

    def _record(self) -> None:
        """Run the iteration on the inputs; where its result has their shape, leave it in them."""
        self.result = self.function(*self.given)
        self.loops = shape(self.result) == shape(self.given)
        if self.loops:
            pairs = [(a, b) for a, b in zip(self.inputs, leaves(self.result), strict=True) if a is not b]
            if pairs:
                torch._foreach_copy_([a for a, _ in pairs], [b for _, b in pairs])

    def __call__(self, *given: Any) -> tuple[Any, Any, Tensor]:
        pairs = [(a, b) for a, b in zip(self.inputs, leaves(given), strict=True) if a is not b]
        if pairs:
            torch._foreach_copy_([a for a, _ in pairs], [b for _, b in pairs])
        return self.again()

    def holds(self, given: tuple[Any, Any, Tensor]) -> bool:
        """Whether what it is to be given is what it left in its inputs."""
        return all(a is b for a, b in zip(given, self.given, strict=True))

    def again(self) -> tuple[Any, Any, Tensor]:
        if self.graph is None:
            self._record()
        else:
            self.graph.replay()
        return self.given if self.loops else self.result
