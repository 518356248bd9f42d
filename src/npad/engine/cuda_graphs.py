"""CUDA graphs: launch hundreds of small kernels as one.

A graph works on fixed tensors, into which its arguments are copied. Where the results have the
shapes of the arguments, each replay leaves them in these tensors for the next replay. A graph is
valid for one set of shapes; it is captured after a few eager calls with these shapes, and kept with
the model.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from npad.engine.memory import total_memory
from npad.engine.pytree import flatten, tree_leaves, tree_map, tree_shape
from npad.errors import OutOfMemory
from npad.model import Capabilities, innermost, tensors_of

# Eager calls per shape before its graph is captured: a capture costs some fifty launches.
EAGER_CALLS = 3
MAX_GRAPHS = 256  # graphs kept per model
MAX_MEMORY_SHARE = 0.6  # share of the GPU's memory in use beyond which no graph is captured

Function = Callable[..., tuple[Any, ...]]
# No thread may replay a graph while another one captures, even of another model.
_capturing = threading.Lock()


@contextmanager
def graphs_of(model: Any, capabilities: Capabilities | None = None) -> Iterator[GraphCache | None]:
    """Lock the graphs of a model for one caller, or yield None if graphs cannot be used.

    They cannot be used if the model is not capturable, outside inference mode, or while another
    thread uses them. `capabilities` are the model's, if they are known.
    """
    capabilities = Capabilities.of(model) if capabilities is None else capabilities
    if not capabilities.capturable or not torch.is_inference_mode_enabled():
        yield None
        return
    graphs: GraphCache = innermost(model).__dict__.setdefault("_graphs", GraphCache())
    if not graphs.lock.acquire(blocking=False):
        yield None
        return
    try:
        yield graphs
    finally:
        graphs.lock.release()


class GraphCache:
    """The graphs of one model. A copy of the model starts with none."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        # Per shape: its graph, or its number of eager calls (EAGER_CALLS + 1: not capturable).
        self.entries: OrderedDict[Any, int | Graph] = OrderedDict()
        self.pool: Any = None
        self.last: Graph | None = None  # the last graph replayed: the next call often continues it

    def __deepcopy__(self, memo: Any) -> GraphCache:
        return GraphCache()

    def __reduce__(self) -> tuple[type[GraphCache], tuple[()]]:
        return GraphCache, ()

    def call(
        self, function: Function, model: Any, key: Any, *arguments: Any, private: bool = False
    ) -> tuple[Any, ...]:
        """Return function(*arguments), by replaying its graph if it has been captured.

        Args:
            function: depends only on `model`, `key` and its arguments.
            model: the model whose weights the function reads.
            key: distinguishes functions of the same model with equal shapes.
            arguments: trees of tensors.
            private: results stay valid until the next call of this graph, not of any graph.
        """
        if self.last is not None and self.last.key == key and self.last.continues(arguments):
            return self.last.replay()
        previous, self.last = self.last, None
        weights = next(tensors_of(innermost(model)))
        leaves, shape = flatten(arguments)
        shape_key = (key, model, weights.data_ptr(), shape)
        try:
            entry = self.entries.pop(shape_key, 0)
        except TypeError:  # part of the key is not hashable
            return function(*arguments)
        if entry == EAGER_CALLS:
            shared = previous is not None and previous.continues(arguments)
            entry = self._capture(function, key, arguments, weights.device, shared, private)
        elif isinstance(entry, int):
            entry += 1
        self.entries[shape_key] = entry
        if len(self.entries) > MAX_GRAPHS:
            self.entries.popitem(last=False)
        if isinstance(entry, int):
            return function(*arguments)
        self.last = entry
        return entry.replay(leaves)

    def _capture(
        self,
        function: Function,
        key: Any,
        arguments: tuple[Any, ...],
        device: torch.device,
        shared: bool,
        private: bool,
    ) -> int | Graph:
        pool = None
        if device.type == "cuda":
            if torch.cuda.memory_reserved(device) > MAX_MEMORY_SHARE * total_memory(device):
                return EAGER_CALLS + 1
            self.pool = self.pool or torch.cuda.graph_pool_handle()
            pool = torch.cuda.graph_pool_handle() if private else self.pool
        try:
            return Graph(function, key, arguments, pool, shared)
        except (RuntimeError, OutOfMemory):  # a host synchronisation, or not enough memory
            self.pool = None
            return EAGER_CALLS + 1


class Graph:
    """A captured function. Its results are in its memory pool, or in its arguments if it loops.

    shared: use the arguments themselves, which belong to a graph that this one continues.
    """

    def __init__(
        self, function: Function, key: Any, arguments: tuple[Any, ...], pool: Any, shared: bool
    ) -> None:
        self.key = key
        self.arguments = arguments if shared else tree_map(torch.clone, arguments)
        self.inputs = tree_leaves(self.arguments)
        self.function = function
        if pool is None:  # on a CPU, for tests: a replay calls the function again
            self.graph = None
            return
        self.graph = torch.cuda.CUDAGraph()
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):  # warm-up: libraries initialise in their first call
            function(*tree_map(torch.clone, arguments))
        torch.cuda.current_stream().wait_stream(stream)
        with _capturing, torch.cuda.graph(self.graph, pool=pool, capture_error_mode="thread_local"):
            self._record()

    def _record(self) -> None:
        """Call the function on the inputs; copy the result into them if it has their shapes."""
        self.result = self.function(*self.arguments)
        self.loops = tree_shape(self.result) == tree_shape(self.arguments)
        if self.loops:
            copy_all(self.inputs, tree_leaves(self.result))

    def continues(self, arguments: tuple[Any, ...]) -> bool:
        """Return whether the arguments are this graph's own, as its last replay left them."""
        same_count = len(arguments) == len(self.arguments)
        return same_count and all(
            argument is held for argument, held in zip(arguments, self.arguments, strict=True)
        )

    def replay(self, leaves: list[torch.Tensor] | None = None) -> tuple[Any, ...]:
        """Run on the tensors of its arguments; None: on the current contents of the inputs."""
        if leaves is not None:
            copy_all(self.inputs, leaves)
        if self.graph is None:
            self._record()
        else:
            with _capturing:
                self.graph.replay()
        return self.arguments if self.loops else self.result


def bucket(size: int) -> int:
    """Round a size up to one of few: a power of two or, from 12 on, three quarters of one.

    What is padded to a bucket has few shapes, so that it is captured soon and replayed often.
    """
    power = 1 << (size - 1).bit_length()
    return power * 3 // 4 if power >= 16 and size <= power * 3 // 4 else power


def copy_all(targets: list[torch.Tensor], sources: list[torch.Tensor]) -> None:
    """Copy each source into its target, one kernel per dtype; skip identical tensors."""
    by_dtype: dict[torch.dtype, tuple[list[torch.Tensor], list[torch.Tensor]]] = {}
    for target, source in zip(targets, sources, strict=True):
        if target is not source:
            pair = by_dtype.setdefault(target.dtype, ([], []))
            pair[0].append(target)
            pair[1].append(source)
    for same_dtype_targets, same_dtype_sources in by_dtype.values():
        torch._foreach_copy_(same_dtype_targets, same_dtype_sources)
