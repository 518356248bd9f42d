"""Sentences on which decoders are measured, with every output kept in a record."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from npad.calibrate.decoding_tasks import Outputs, Task
from npad.calibrate.halving import Point
from npad.metrics.metric import Metric
from npad.reproduce.bench import decoder_signature
from npad.reproduce.record import Record, is_number
from npad.search.decoder import Decoder

Unit = Literal["calls", "milliseconds"]


class Decodings:
    """Outputs of decoders, looked up in a record or decoded and recorded.

    Args:
        task: the model.
        record: where outputs are kept; in memory if None.
        identity: what else the outputs depend on: the model's files, the device.
        batch: sources decoded at a time; None for all. Milliseconds depend on it.
    """

    def __init__(
        self, task: Task, record: Record | None, identity: str, batch: int | None = None
    ) -> None:
        self.task, self.identity, self.batch = task, identity, batch
        self.record = record or Record()
        self.calls = 0  # of all outputs asked for, recorded ones included
        self.seconds = 0.0

    def outputs(self, sources: Sequence[str], decoder: Decoder) -> Outputs:
        """Return a decoder's outputs.

        Raises:
            StorageError: the recorded ones have another form.
        """
        digest = hashlib.sha256("\n".join(sources).encode()).hexdigest()[:32]
        key = ("outputs", self.identity, self.batch, digest, decoder_signature(decoder))

        def measure() -> dict[str, Any]:
            return asdict(self._decode(sources, decoder))

        value = self.record.row(key, measure, partial(_are_outputs, count=len(sources)))
        outputs = Outputs(**value)
        self.calls += outputs.calls
        self.seconds += outputs.seconds
        return outputs

    def _decode(self, sources: Sequence[str], decoder: Decoder) -> Outputs:
        batch = self.batch or len(sources)
        parts = [
            self.task.decode(sources[start : start + batch], decoder)
            for start in range(0, len(sources), batch)
        ]
        return Outputs(
            [text for part in parts for text in part.texts],
            [log_prob for part in parts for log_prob in part.log_probs],
            sum(part.calls for part in parts),
            sum(part.seconds for part in parts),
        )


def _are_outputs(value: Any, count: int) -> bool:
    """Return whether a value from a record is the outputs of so many sources."""
    if not isinstance(value, dict) or value.keys() != {field.name for field in fields(Outputs)}:
        return False
    texts, log_probs = value["texts"], value["log_probs"]
    return (
        isinstance(texts, list)
        and isinstance(log_probs, list)
        and len(texts) == len(log_probs) == count
        and all(isinstance(text, str) for text in texts)
        and all(map(is_number, (*log_probs, value["calls"], value["seconds"])))
    )


@dataclass(frozen=True)
class Measured:
    """A decoder on the first sentences of a part."""

    statistics: NDArray[np.float64]  # [sentences, k], of the metric
    cost: float  # per sentence

    def point(self, metric: Metric) -> Point:
        """Return quality, rounded so that ties are equal, and cost."""
        quality = float(metric.qualities(self.statistics.sum(0)))
        return Point(metric.tie * round(quality / metric.tie), self.cost)


class Part:
    """Sentences with references, on whose first ones decoders are measured.

    Only the sentences beyond those of the last size are decoded for a larger one.

    Args:
        decodings: the outputs.
        metric: the metric.
        unit: of the cost.
        sources: the sentences.
        references: one for each; empty texts if the metric needs none.
        sizes: numbers of sentences that decoders are measured on, rising.
        done: called with a decoder and the number of sentences decoded.
    """

    def __init__(
        self,
        decodings: Decodings,
        metric: Metric,
        unit: Unit,
        sources: Sequence[str],
        references: Sequence[str],
        sizes: Sequence[int],
        done: Callable[[Decoder, int], None],
    ) -> None:
        self.decodings, self.metric, self.unit = decodings, metric, unit
        self.sources, self.references, self.sizes, self.done = sources, references, sizes, done
        self.blocks: dict[tuple[str, int], Measured] = {}

    def measure(self, decoder: Decoder, size: int) -> Measured:
        """Return what a decoder reaches on the first `size` sentences."""
        stops = [stop for stop in self.sizes if stop <= size]
        blocks = [
            self._block(decoder, start, stop)
            for start, stop in zip([0, *stops], stops, strict=False)
        ]
        total = sum(len(block.statistics) * block.cost for block in blocks)
        return Measured(np.concatenate([block.statistics for block in blocks]), total / size)

    def _block(self, decoder: Decoder, start: int, stop: int) -> Measured:
        key = decoder_signature(decoder), start
        if key not in self.blocks:
            outputs = self.decodings.outputs(self.sources[start:stop], decoder)
            cost = outputs.calls if self.unit == "calls" else 1000 * outputs.seconds
            self.blocks[key] = Measured(
                self.metric.statistics(
                    outputs.texts, self.references[start:stop], outputs.log_probs
                ),
                cost / (stop - start),
            )
            self.done(decoder, stop - start)
        return self.blocks[key]
