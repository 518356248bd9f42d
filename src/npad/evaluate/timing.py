"""Time decoders in turn on the same sources, so that a busy moment does not fall on one alone."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from npad.engine.cost import Timing, now
from npad.engine.cuda_graphs import EAGER_CALLS
from npad.engine.devices import machine_name
from npad.model import Capabilities
from npad.pipelines.pipeline import Pipeline
from npad.search.request import Decoding

ROUNDS = 3  # of which the median counts
ALONE = 24  # sentences to decode one by one
BATCH = 64  # sentences decoded at a time, where sentences per second are asked for


def time_in_turn(
    pipeline: Pipeline,
    sources: Sequence[Any],
    decodings: Mapping[str, Decoding],
    batch: int = 1,
    rounds: int = ROUNDS,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, Timing]:
    """Decode sources by each decoder in turn, several times, and return how long it takes.

    Args:
        pipeline: the model.
        sources: what it reads.
        decodings: decoders with their limits, by name.
        batch: sources decoded at a time.
        rounds: measurements of each decoder.
        progress: called with the passes over the sources that are done, and all.
    """
    device = Capabilities.of(pipeline.model).device
    batches = [sources[start : start + batch] for start in range(0, len(sources), batch)]
    seconds: dict[str, list[float]] = {name: [] for name in decodings}

    def decode_all(parts: Sequence[Sequence[Any]], decoding: Decoding) -> float:
        start = now(device)
        for part in parts:
            deque(pipeline.run(part, decoding, len(part)), maxlen=0)
        return now(device) - start

    for decoding in decodings.values():
        decode_all(warm_up(batches, device), decoding)
    for number in range(rounds):
        for place, (name, decoding) in enumerate(decodings.items(), start=1):
            seconds[name].append(decode_all(batches, decoding) / len(sources))
            progress(number * len(decodings) + place, rounds * len(decodings))
    machine = machine_name(device)
    return {
        name: Timing(tuple(times), batch, len(sources), machine) for name, times in seconds.items()
    }


def warm_up(batches: Sequence[Sequence[Any]], device: torch.device) -> Sequence[Sequence[Any]]:
    """Return what a decoder decodes before it is timed, so that what happens once does not count.

    That is the first batch; on a GPU all of them, as often as it takes to capture their steps.
    """
    return batches[:1] if device.type == "cpu" else [*batches] * (EAGER_CALLS + 1)
