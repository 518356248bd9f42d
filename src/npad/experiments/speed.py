"""Decoding speed of a machine: an untrained model, outputs of one length, every strategy.

Weights are random and the end token is never generated, so that all machines do the same work. A
row-step is one row (sentence × chain × beam) through one step. Operations are counted by the plain
formulas of the model, whatever is computed in their place: computing fewer counts as speed.
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
from npad.search.beam import Beam
from npad.search.decoder import Decoder
from npad.search.greedy import Greedy
from npad.search.npad import NPAD
from npad.search.registry import DECODERS

OTHER_SIZES = (Beam(10), NPAD(Greedy(), 10), NPAD(Beam(5), 10))  # beside every decoder's default
STRATEGIES: dict[str, Decoder] = {
    decoder.title: decoder
    for decoder in (
        *(kind() for kind in DECODERS if issubclass(kind, Decoder) and kind.compared),
        *OTHER_SIZES,
    )
}
ROUNDS = 7  # of which the median counts
WARMUPS = 2  # rounds
GPU_WARMUPS = 5  # rounds: a GPU's steps are captured once their shape has been met often enough
NEVER = -1e4  # logit bias of the end token


@dataclass(frozen=True)
class Sizes:
    """Sizes of a model and of its inputs and outputs."""

    units: int = 1024
    embedding: int = 512
    vocabulary: int = 8000  # tokens
    source: int = 20  # tokens, end token included
    length: int = 20  # tokens generated
    sentences: int = 16  # at a time
    rows: int = 1024  # most rows at a time

    def operations(self) -> int:
        """Return the operations of a row-step: two per weight of a matrix, and the attention's."""
        annotation = 2 * self.units  # both directions
        weights = 3 * self.units * (self.embedding + self.units) + self.units * annotation
        weights += 3 * self.units * (annotation + self.units)
        weights += self.embedding * (self.units + self.embedding + annotation)
        weights += self.embedding * self.vocabulary
        return 2 * weights + self.source * annotation * 6

    def sources(self, sentences: int) -> list[list[int]]:
        """Return random source sentences, without their end token."""
        generator = torch.Generator().manual_seed(0)
        shape = (sentences, self.source - 1)
        return torch.randint(1, self.vocabulary, shape, generator=generator).tolist()


@dataclass(frozen=True)
class Speed:
    """The speed and memory of one strategy."""

    strategy: str
    latency: float  # seconds for one sentence
    tokens: float  # per second, of the best hypotheses, many sentences at a time
    row_steps: float  # per second, without re-scoring
    share: float  # of the matrix rate
    memory: int  # peak in bytes, model included


def untrained(units: int, embedding: int, vocabulary: int) -> AttentionModel:
    """Return a model with random weights that never generates the end token."""
    torch.manual_seed(0)
    model = AttentionModel(vocabulary, vocabulary, units, embedding, initialisation="glorot").eval()
    with torch.no_grad():
        model.logits.bias[model.special.eos] = NEVER
    return model


def clock(work: Callable[[], Any], repeats: int, device: torch.device) -> float:
    """Return the median seconds that `work` takes, kernels of a GPU included."""
    return statistics.median(_times(work, repeats, device))


def _times(work: Callable[[], Any], repeats: int, device: torch.device) -> list[float]:
    times = []
    for _ in range(repeats):
        wait(device)
        start = time.perf_counter()
        work()
        wait(device)
        times.append(time.perf_counter() - start)
    return times


def wait(device: torch.device) -> None:
    """Wait until a GPU has finished its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def matrix_rate(device: torch.device, dtype: torch.dtype) -> float:
    """Return the operations per second of a large matrix product, at its fastest.

    Shares are of what the machine can do, not of what it did while another process ran.
    """
    size = 8192 if device.type == "cuda" else 2048
    left, right = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    for _ in range(3):
        left @ right
    return 2 * size**3 / min(_times(lambda: left @ right, 10, device))


def measured(
    sizes: Sizes,
    device: torch.device,
    precision: str,
    rates: Mapping[str, float],
    repeats: int = ROUNDS,
    strategies: Mapping[str, Decoder] = STRATEGIES,
) -> Iterator[Speed]:
    """Measure every strategy in turn.

    Args:
        sizes: of the model and its inputs.
        device: where to decode.
        precision: of NPAD's noisy chains.
        rates: operations per second of a large matrix product, by precision; "float32" included.
        repeats: measurements, of which the median counts.
        strategies: decoders by the name that their row has.

    Yields:
        The speed of each strategy, in order.
    """
    plain = untrained(sizes.units, sizes.embedding, sizes.vocabulary)
    fast: Any = Prepared(plain).to(device).eval()
    model = fast if precision == "float32" else LowPrecision(fast, precision)
    for name, decoder in strategies.items():
        batch = sizes.sources(max(1, min(sizes.sentences, sizes.rows // decoder.rows)))
        decode_batch = partial(decode, model, batch, decoder, sizes.length)
        decode_sentence = partial(decode, model, batch[:1], decoder, sizes.length)
        with count_calls() as calls:
            decode_batch()
        for _ in range(GPU_WARMUPS if device.type == "cuda" else WARMUPS):
            decode_sentence()
            decode_batch()
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        latency = clock(decode_sentence, repeats, device)
        seconds = clock(decode_batch, repeats, device)
        row_steps = calls.search / seconds
        rate = rates[precision if isinstance(decoder, NPAD) else "float32"]
        yield Speed(
            strategy=name,
            latency=latency,
            tokens=len(batch) * sizes.length / seconds,
            row_steps=row_steps,
            share=row_steps * sizes.operations() / rate,
            memory=peak_memory(device),
        )


def peak_memory(device: torch.device) -> int:
    """Return the peak memory in bytes: of a GPU since the last reset, of this process on a CPU.

    Returns:
        0 on Windows, which has no such count.
    """
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    if sys.platform == "win32":
        return 0
    import resource

    unit = 1 if sys.platform == "darwin" else 1024  # bytes of ru_maxrss's unit
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
