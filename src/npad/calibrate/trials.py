"""Trials of decoders on sentences: outputs from a record or decoded, their quality and cost."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from npad.calibrate.halving import Outcome
from npad.engine.cost import Timing, Unit
from npad.engine.devices import machine_name
from npad.evaluate.report import decode_timed
from npad.evaluate.timing import ROUNDS, time_in_turn, warm_up
from npad.metrics.metric import FloatArray, Metric, Reference
from npad.model import Capabilities
from npad.pipelines.pipeline import Pipeline
from npad.reproduce.bench import decoder_signature
from npad.reproduce.record import Record, has_form, is_number
from npad.search.decoder import Decoder
from npad.search.request import Decoding

TIMED_BATCHES = 24  # batches of the held-out sentences on which the finalists are timed in turn


class Measured(NamedTuple):
    """A decoder on some sentences."""

    statistics: FloatArray  # [sentences, k], of the metric
    cost: float  # per sentence

    def point(self, metric: Metric) -> Outcome:
        """Return quality, rounded so that ties are equal, and cost."""
        quality = float(metric.qualities(self.statistics.sum(0)))
        return Outcome(metric.tie * round(quality / metric.tie), self.cost)


@dataclass(frozen=True)
class Sentences:
    """Sentences on whose first ones decoders are measured.

    Attributes:
        sources: the sentences.
        references: one for each; empty texts if the metric needs none.
        metric: of quality, fitted to all references.
        sizes: numbers of sentences that decoders are measured on, rising.
        blocks: what has been measured, by decoder and first sentence.
    """

    sources: Sequence[str]
    references: Sequence[Reference]
    metric: Metric
    sizes: Sequence[int]
    blocks: dict[tuple[str, int], Measured] = field(default_factory=dict, repr=False)


class Trials:
    """Decodes sentences with one decoder after another, and keeps every output in a record.

    Args:
        pipeline: the model.
        limits: a request whose decoder is replaced.
        unit: of cost.
        record: where outputs are kept.
        identity: what else outputs depend on: the model's files, the device.
        read: returns what the pipeline reads for a source.
        batch: sources decoded at a time, on which milliseconds depend; None for all.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        limits: Decoding,
        unit: Unit,
        record: Record,
        identity: str,
        read: Callable[[str], Any],
        batch: int | None,
    ) -> None:
        self.pipeline, self.limits, self.unit = pipeline, limits, unit
        self.record, self.read, self.batch = record, read, batch
        self.machine: str | None = None
        if unit == "milliseconds":
            self.machine = machine_name(Capabilities.of(pipeline.model).device)
            identity = f"{identity} {self.machine}"
        self.identity = identity
        self.calls = 0  # of all outputs asked for, recorded ones included
        self.seconds = 0.0

    def outputs(self, sources: Sequence[str], decoder: Decoder) -> dict[str, Any]:
        """Return a decoder's texts and log-probabilities, and their calls and seconds.

        Raises:
            StorageError: the recorded ones have another form.
        """
        digest = hashlib.sha256("\n".join(sources).encode()).hexdigest()[:32]
        key = ("outputs", self.identity, self.batch, digest, decoder_signature(decoder))
        decode = partial(self._decode, sources, decoder)
        value: dict[str, Any] = self.record.row(key, decode, partial(_valid, count=len(sources)))
        self.calls += value["calls"]
        self.seconds += value["seconds"]
        return value

    def _decode(self, sources: Sequence[str], decoder: Decoder) -> dict[str, Any]:
        decoding, batch = replace(self.limits, decoder=decoder), self.batch or len(sources)
        batches = [
            list(map(self.read, sources[start : start + batch]))
            for start in range(0, len(sources), batch)
        ]
        if self.unit == "milliseconds":
            for part in warm_up(batches, Capabilities.of(self.pipeline.model).device):
                decode_timed(self.pipeline, part, decoding, batch)
        parts = [decode_timed(self.pipeline, part, decoding, batch) for part in batches]
        outputs = [output for part in parts for output in part.outputs]
        return {
            "texts": [output.text for output in outputs],
            "log_probs": [output.log_prob for output in outputs],
            "calls": sum(part.calls + part.rescored for part in parts),
            "seconds": sum(part.seconds for part in parts),
        }

    def in_turn(self, sources: Sequence[str], decoders: Mapping[str, Decoder]) -> dict[str, Timing]:
        """Return the times of decoders that take turns on the first sentences.

        Raises:
            StorageError: the recorded ones have another form.
        """
        batch = self.batch or len(sources)
        timed = list(sources[: TIMED_BATCHES * batch])
        digest = hashlib.sha256("\n".join(timed).encode()).hexdigest()[:32]
        names = [decoder_signature(decoder) for decoder in decoders.values()]
        decodings = {n: replace(self.limits, decoder=decoder) for n, decoder in decoders.items()}

        def measure() -> list[Sequence[float]]:
            found = time_in_turn(self.pipeline, list(map(self.read, timed)), decodings, batch)
            return [timing.seconds for timing in found.values()]

        seconds: list[list[float]] = self.record.row(
            ("times", self.identity, batch, digest, ROUNDS, *names),
            measure,
            lambda value: has_form(value, [[is_number]]) and len(value) == len(names),
        )
        assert self.machine is not None
        return {
            name: Timing(tuple(times), batch, len(timed), self.machine)
            for name, times in zip(decoders, seconds, strict=True)
        }

    def measure(
        self, part: Sentences, decoder: Decoder, size: int, done: Callable[[Decoder, int], None]
    ) -> Measured:
        """Return what a decoder reaches on the first `size` sentences of a part.

        Only those beyond the last size are decoded; `done` is then called with their number.
        """
        blocks, start, name = [], 0, decoder_signature(decoder)
        for stop in (stop for stop in part.sizes if stop <= size):
            if (name, start) not in part.blocks:
                part.blocks[name, start] = self._measure(part, decoder, start, stop)
                done(decoder, stop - start)
            blocks.append(part.blocks[name, start])
            start = stop
        total = sum(len(block.statistics) * block.cost for block in blocks)
        return Measured(np.concatenate([block.statistics for block in blocks]), total / size)

    def _measure(self, part: Sentences, decoder: Decoder, start: int, stop: int) -> Measured:
        value = self.outputs(part.sources[start:stop], decoder)
        references = part.references[start:stop]
        statistics = part.metric.statistics(value["texts"], references, value["log_probs"])
        cost = value["calls"] if self.unit == "calls" else 1000 * value["seconds"]
        return Measured(statistics, cost / (stop - start))


def _valid(value: Any, count: int) -> bool:
    """Return whether a value from a record is the outputs of so many sources."""
    if not isinstance(value, dict) or value.keys() != {"texts", "log_probs", "calls", "seconds"}:
        return False
    texts, log_probs = value["texts"], value["log_probs"]
    return (
        isinstance(texts, list)
        and isinstance(log_probs, list)
        and len(texts) == len(log_probs) == count
        and all(isinstance(text, str) for text in texts)
        and all(map(is_number, (*log_probs, value["calls"], value["seconds"])))
    )


class Work:
    """Progress in rows × sentences: the work done, and an estimate of all.

    Args:
        rows: of each candidate.
        sizes: sentences of each rung, rising.
        held_out: sentences of the held-out part.
        progress: called with the work done so far and in all.
    """

    def __init__(
        self,
        rows: Mapping[str, int],
        sizes: Sequence[int],
        held_out: int,
        progress: Callable[[int, int], None],
    ) -> None:
        self.rows, self.held_out, self.progress = rows, held_out, progress
        self.blocks = [stop - start for start, stop in zip([0, *sizes], sizes, strict=False)]
        self.done = self.total = 0
        self.most_rows = float("inf")  # of a candidate that is expected to be in the budget

    def expect_below(self, budget: float, rows: int, cost: float) -> None:
        """Expect candidates in the budget by the cost of the first one that is measured."""
        if self.most_rows == float("inf"):
            self.most_rows = 2 * rows * budget / max(cost, 1e-9)
            self.plan(list(self.rows), 0)

    def plan(self, names: Sequence[str], rung: int) -> None:
        """Expect these candidates on a rung, and half of them on each that follows."""
        rows = sum(self.rows[name] for name in names if self.rows[name] <= self.most_rows)
        following = [size / 2**i for i, size in enumerate([*self.blocks[rung:], self.held_out])]
        self.total = self.done + int(rows * sum(following))

    def plan_held_out(self, names: Sequence[str]) -> None:
        """Expect these candidates on the held-out part."""
        self.total = self.done + self.held_out * sum(self.rows[name] for name in names)

    def add(self, decoder: Decoder, sentences: int) -> None:
        """Note that a decoder has decoded so many sentences."""
        self.done += decoder.rows * sentences
        self.progress(self.done, max(self.total, self.done))
