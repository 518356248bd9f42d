"""Decoding speed of a machine: every strategy, on an untrained model or on one's own.

An untrained model has random weights and never generates the end token, so that all machines do the
same work. Its operations are counted by the plain formulas of the model, whatever is computed in
their place: computing fewer counts as speed. One's own model translates texts, whose outputs end
where they end. A row-step is one row (sentence × chain × beam) through one step.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from npad.decoding import decode
from npad.engine.cost import count_calls
from npad.models.cgru.fast import Prepared
from npad.models.cgru.model import AttentionModel
from npad.models.low_precision import LowPrecision
from npad.pipelines.translation import Translator
from npad.search.beam import Beam
from npad.search.decoder import Decoder
from npad.search.defaults import Defaults
from npad.search.greedy import Greedy
from npad.search.npad import NPAD
from npad.search.registry import DECODERS

OTHER_SIZES = (Beam(10), NPAD(Greedy(), 10), NPAD(Beam(5), 10))  # beside every decoder's default
ROUNDS = 7  # of which the median counts
WARMUPS = 2  # rounds
GPU_WARMUPS = 5  # rounds: a GPU's steps are captured once their shape has been met often enough
NEVER = -1e4  # logit bias of the end token
SENTENCES = (  # everyday ones, which one's own model translates unless given others
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
        defaults: the model's, which NPAD's noise and order of candidates are; npad's own if None.
    """
    defaults = defaults or Defaults()
    decoders = [kind() for kind in DECODERS if issubclass(kind, Decoder) and kind.compared]
    own = {"noise": defaults.noise, "selector": defaults.selector}
    chosen: list[Any] = [
        replace(decoder, **own) if isinstance(decoder, NPAD) else decoder  # type: ignore[arg-type]
        for decoder in (*decoders, *OTHER_SIZES)
    ]
    return {decoder.title: decoder for decoder in chosen}


STRATEGIES = usual_strategies()


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
        tokens = len(batch) * sizes.length
        speed = _timed(name, decode_sentence, decode_batch, tokens, device, repeats)
        rate = rates[precision if isinstance(decoder, NPAD) else "float32"]
        yield replace(speed, share=speed.row_steps * sizes.operations() / rate)


def measured_model(
    translator: Translator,
    texts: Sequence[str],
    device: torch.device,
    repeats: int = ROUNDS,
    strategies: Mapping[str, Decoder] = STRATEGIES,
    max_length: int = 200,
    max_rows: int = 1024,
) -> Iterator[Speed]:
    """Measure every strategy on a model's translations of texts, tokenising included.

    Args:
        translator: the model.
        texts: translated at a time; the latency is that of the first.
        device: where the model is.
        repeats: measurements, of which the median counts.
        strategies: decoders by the name that their row has.
        max_length: longest output in tokens, end token included.
        max_rows: most rows in a batch.

    Yields:
        The speed of each strategy, in order, without a share.
    """
    for name, decoder in strategies.items():
        translate = partial(
            translator.translate, decoder=decoder, max_length=max_length, max_rows=max_rows
        )
        hypotheses = [output.hypothesis for output in translate(texts)]
        tokens = sum(len(hypothesis.tokens) + hypothesis.finished for hypothesis in hypotheses)
        sentence, batch = partial(translate, texts[:1]), partial(translate, texts)
        yield _timed(name, sentence, batch, tokens, device, repeats)


def _timed(
    name: str,
    decode_sentence: Callable[[], Any],
    decode_batch: Callable[[], Any],
    tokens: int,
    device: torch.device,
    repeats: int,
) -> Speed:
    """Time a strategy after a warm-up; tokens: of the batch's best outputs."""
    with count_calls() as calls:
        decode_batch()
    for _ in range(GPU_WARMUPS if device.type == "cuda" else WARMUPS):
        decode_sentence()
        decode_batch()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    latency = clock(decode_sentence, repeats, device)
    seconds = clock(decode_batch, repeats, device)
    return Speed(
        strategy=name,
        latency=latency,
        tokens=tokens / seconds,
        row_steps=calls.search / seconds,
        share=None,
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
