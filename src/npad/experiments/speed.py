"""How fast a machine decodes: an untrained model, outputs of one length, and what that comes to beside its matrix rate.

The weights are random and the end symbol is never written, so that all machines do the same work. A row-step is one row
(sentence × chain × beam) through one step. Operations are those of the plain formulas, whatever is done instead: doing
fewer counts as speed.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from npad.decoding import decode
from npad.engine.cost import count_calls
from npad.models.cgru.fast import Prepared
from npad.models.cgru.model import AttentionModel
from npad.models.low_precision import LowPrecision
from npad.noise.noisy import Noise
from npad.search.beam import Beam
from npad.search.decoder import Decoder
from npad.search.greedy import Greedy
from npad.search.npad import NPAD

STRATEGIES: dict[str, Decoder] = {
    "greedy": Greedy(),
    "beam 5": Beam(5),
    "beam 10": Beam(10),
    "NPAD-10 + greedy": NPAD(Greedy(), 10, Noise(0.3)),
    "NPAD-50 + greedy": NPAD(Greedy(), 50, Noise(0.3)),
    "NPAD-10 + beam 5": NPAD(Beam(5), 10, Noise(0.3)),
}


@dataclass(frozen=True)
class Sizes:
    """Of a model and what it decodes."""

    units: int = 1024
    embedding: int = 512
    symbols: int = 8000
    source: int = 20  # symbols, the end symbol included
    length: int = 20  # symbols written
    sentences: int = 16  # at a time
    rows: int = 1024  # at a time, at most

    def operations(self) -> int:
        """Of one row-step by the plain formulas: two for each weight of a matrix, and the attention's own."""
        both = 2 * self.units
        weights = 3 * self.units * (self.embedding + self.units) + self.units * both
        weights += 3 * self.units * (both + self.units)
        weights += (
            self.embedding * (self.units + self.embedding + both) + self.embedding * self.symbols
        )
        return 2 * weights + self.source * both * 6

    def sources(self, sentences: int) -> list[list[int]]:
        generator = torch.Generator().manual_seed(0)
        return torch.randint(
            1, self.symbols, (sentences, self.source - 1), generator=generator
        ).tolist()


@dataclass(frozen=True)
class Speed:
    """What one strategy takes."""

    strategy: str
    latency: float  # seconds for one sentence
    tokens: float  # of the best hypotheses, a second, many sentences at a time
    row_steps: float  # a second, re-scoring not counted
    share: float  # of the matrix rate
    memory: int  # bytes, at most, model included


def untrained(units: int, embedding: int, symbols: int) -> AttentionModel:
    """A model that writes to the end of its tether."""
    torch.manual_seed(0)
    model = AttentionModel(symbols, symbols, units, embedding, initialisation="glorot").eval()
    with torch.no_grad():
        model.logits.bias[model.special.eos] = -1e4
    return model


def clock(work: Callable[[], Any], repeats: int, device: torch.device) -> float:
    """Median seconds."""
    times = []
    for _ in range(repeats):
        wait(device)
        began = time.perf_counter()
        work()
        wait(device)
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def wait(device: torch.device) -> None:
    """Wait until a GPU has finished its work; a CPU has."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def matrix_rate(device: torch.device, dtype: torch.dtype) -> float:
    """Operations a second in a large product."""
    size = 8192 if device.type == "cuda" else 2048
    a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    for _ in range(3):
        a @ b
    return 2 * size**3 / clock(lambda: a @ b, 10, device)


def measured(
    sizes: Sizes, device: torch.device, precision: str, rates: Mapping[str, float], repeats: int = 3
) -> Iterator[Speed]:
    """Each strategy in turn; the precision is of NPAD's chains. rates: of a large product, by precision."""
    fast: Any = Prepared(untrained(sizes.units, sizes.embedding, sizes.symbols)).to(device).eval()
    model = fast if precision == "float32" else LowPrecision(fast, precision)
    for name, decoder in STRATEGIES.items():
        each = max(1, min(sizes.sentences, sizes.rows // decoder.rows))
        some = sizes.sources(each)
        with count_calls() as calls:
            decode(model, some, decoder, sizes.length)
        for _ in range(
            5 if device.type == "cuda" else 1
        ):  # a GPU's steps are captured when they were met often enough
            decode(model, some[:1], decoder, sizes.length)
            decode(model, some, decoder, sizes.length)
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        latency = clock(partial(decode, model, some[:1], decoder, sizes.length), repeats, device)
        seconds = clock(partial(decode, model, some, decoder, sizes.length), repeats, device)
        tokens, steps = each * sizes.length / seconds, calls.search / seconds
        rate = rates[precision if isinstance(decoder, NPAD) else "float32"]
        yield Speed(
            name, latency, tokens, steps, steps * sizes.operations() / rate, peak_memory(device)
        )


def peak_memory(device: torch.device) -> int:
    """Bytes: of the GPU since the last look, of this process since it began."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    if sys.platform == "win32":
        return 0  # where there is no such count
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
