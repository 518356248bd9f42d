"""Two searches at the same time on one GPU.

Few rows leave most of a GPU idle: a search waits for one small kernel after the other. A second
search on a stream of its own fills the gaps.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

from npad.engine.cost import add_calls, count_calls

First = TypeVar("First")
Second = TypeVar("Second")


def side_by_side(
    first: Callable[[], First], second: Callable[[], Second], device: torch.device
) -> tuple[First, Second]:
    """Return the results of two functions that use models of their own; on a CPU, in turn.

    The second runs in another thread. Their results must be complete when they return, as those of
    a search are, which are on the CPU.
    """
    if device.type != "cuda":
        return first(), second()
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream(device))

    def run_second() -> tuple[Second, int, int]:
        with torch.inference_mode(), torch.cuda.device(device), torch.cuda.stream(stream):
            with count_calls() as calls:
                result = second()
            stream.synchronize()
        return result, calls.search, calls.rescoring

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(run_second)
        result = first()
        other, searched, rescored = running.result()
    add_calls(searched, rescored)
    return result, other
