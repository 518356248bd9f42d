"""Decoding speed of a machine: every strategy, on an untrained model or on yours.

An untrained model has random weights and never generates the end token, so that all machines do the
same work. Its operations are counted by the plain formulas of the model, whatever is computed in
their place: computing fewer counts as speed. One's own model translates texts, whose outputs end
where they end. A row-step is one row (sentence × chain × beam) through one step.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from npad.decoding import decode
from npad.engine.cost import count_calls, now
from npad.models.cgru.fast import Prepared
from npad.models.cgru.model import AttentionModel
from npad.models.low_precision import LowPrecision
from npad.pipelines.outputs import Output
from npad.pipelines.pipeline import Pipeline
from npad.search.beam import Beam
from npad.search.decoder import Decoder
from npad.search.defaults import Defaults
from npad.search.npad import NPAD
from npad.search.registry import DECODERS
from npad.search.request import Decoding

ROUNDS = 7  # of which the median counts
WARMUPS = 2  # rounds
GPU_WARMUPS = 5  # rounds: a GPU's steps are captured once their shape has been met often enough
NEVER = -1e4  # logit bias of the end token
SENTENCES = (  # everyday ones, which a given model translates by default
    "How do I get to the station?",
    "She spends most of her money on books.",
    "I would rather stay at home than go out tonight.",
    "Where is the library?",
    "He has been learning to play the guitar for two years.",
    "Could you tell me what time the next train leaves?",
    "It was raining, so we took a taxi.",
    "My brother lives in a small house by the sea.",
)


def usual_strategies(defaults: Defaults | None = None) -> dict[str, Decoder]:
    """Return every compared decoder and some of other sizes, by title.

    Args:
        defaults: the model's, for the fields that depend on it; npad's own if None.
    """
    defaults = defaults or Defaults()
    kinds = [kind for kind in DECODERS if issubclass(kind, Decoder) and kind.compared]
    npad = NPAD(**NPAD.defaults_on(defaults))
    decoders = [kind(**kind.defaults_on(defaults)) for kind in kinds]
    decoders += [Beam(10), replace(npad, chains=10), replace(npad, inner=Beam(5), chains=10)]
    return {decoder.title: decoder for decoder in decoders}


STRATEGIES = usual_strategies()


@dataclass(frozen=True)
class Workload:
    """Sizes of an untrained model, and of what it decodes."""

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
    share: float | None  # of the matrix rate; None if the model's operations are not known
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
    return statistics.median(times_of(work, repeats, device))


def times_of(work: Callable[[], Any], repeats: int, device: torch.device) -> list[float]:
    """Return the seconds of each repetition of `work`, kernels of a GPU included."""
    times = []
    for _ in range(repeats):
        start = now(device)
        work()
        times.append(now(device) - start)
    return times


def matrix_rate(device: torch.device, dtype: torch.dtype) -> float:
    """Return the operations per second of a large matrix product, at its fastest.

    Shares are of what the machine can do, not of what it did while another process ran.
    """
    size = 8192 if device.type == "cuda" else 2048
    left, right = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    for _ in range(3):
        left @ right
    return 2 * size**3 / min(times_of(lambda: left @ right, 10, device))


def measured(
    workload: Workload,
    device: torch.device,
    precision: str,
    rates: Mapping[str, float],
    strategies: Mapping[str, Decoder] = STRATEGIES,
    rounds: int = ROUNDS,
) -> Iterator[Speed]:
    """Measure every strategy in turn on an untrained model.

    Args:
        workload: the model and its inputs.
        device: where to decode.
        precision: of noisy chains.
        rates: operations per second of a large matrix product, by precision; "float32" included.
        strategies: decoders by the name that their row has.
        rounds: measurements, of which the median counts.

    Yields:
        The speed of each strategy, in order.
    """
    plain = untrained(workload.units, workload.embedding, workload.vocabulary)
    fast: Any = Prepared(plain).to(device).eval()
    model = fast if precision == "float32" else LowPrecision(fast, precision)
    for name, decoder in strategies.items():
        size = max(1, min(workload.sentences, workload.rows // decoder.rows))
        batch = workload.sources(size)
        work = partial(decode, model, decoder=decoder, max_length=workload.length)
        speed = _timed(name, work, batch, size * workload.length, device, rounds)
        rate = rates[precision if decoder.chains else "float32"]
        yield replace(speed, share=speed.row_steps * workload.operations() / rate)


def measured_model(
    pipeline: Pipeline,
    texts: Sequence[str],
    device: torch.device,
    strategies: Mapping[str, Decoding],
    rounds: int = ROUNDS,
) -> Iterator[Speed]:
    """Measure every strategy on a model's translations of texts, tokenising included.

    Args:
        pipeline: the model.
        texts: translated at a time; the latency is that of the first.
        device: where the model is.
        strategies: decoders and their limits by the name that their row has.
        rounds: measurements, of which the median counts.

    Yields:
        The speed of each strategy, in order, without a share.
    """
    for name, decoding in strategies.items():

        def work(batch: Sequence[str], decoding: Decoding = decoding) -> list[Output]:
            limits = decoding.max_length, decoding.max_rows
            return pipeline.decode(batch, decoding.decoder, *limits, decoding.constraint)

        hypotheses = [output.hypothesis for output in work(texts)]
        tokens = sum(len(hypothesis.tokens) + hypothesis.finished for hypothesis in hypotheses)
        yield _timed(name, work, texts, tokens, device, rounds)


def _timed(
    name: str,
    work: Callable[[Any], Any],
    batch: Sequence[Any],
    tokens: int,
    device: torch.device,
    rounds: int,
) -> Speed:
    """Time the decoding of a batch and of its first sentence, after a warm-up.

    Args:
        name: of the strategy.
        work: decodes sentences.
        batch: the sentences.
        tokens: of the batch's best outputs.
        device: where they are decoded.
        rounds: measurements, of which the median counts.
    """
    with count_calls() as calls:
        work(batch)
    for _ in range(GPU_WARMUPS if device.type == "cuda" else WARMUPS):
        work(batch[:1])
        work(batch)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    latency = clock(lambda: work(batch[:1]), rounds, device)
    seconds = clock(lambda: work(batch), rounds, device)
    return Speed(name, latency, tokens / seconds, calls.search / seconds, None, peak_memory(device))


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
