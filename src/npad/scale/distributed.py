"""Workers in place of a translator, and npad in a pipeline that one already has."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from npad.engine.cost import add_calls
from npad.errors import InvalidInput
from npad.pipelines.outputs import Output
from npad.pipelines.pipeline import report_decoded
from npad.pipelines.translation import Translator
from npad.scale.pool import Workers
from npad.scale.units import Failed, Unit, unit_size
from npad.scale.worker import ModelSpec, Worker
from npad.search.decoder import Decoder
from npad.search.registry import DECODERS
from npad.search.request import MAX_LENGTH, MAX_ROWS, Decoding


@dataclass(frozen=True)
class Distributed(Translator):
    """A translator whose `translate` and `stream` run on workers: for evaluation and experiments.

    Everything else, such as `score` and `too_long`, runs in this process, with the model that it
    has loaded. The workers' model calls are added to this process' counters.

    Attributes:
        workers: they must have loaded the same model.
        chain_parts: parts that NPAD's chains are divided into, each of them a unit.
    """

    workers: Workers | None = None
    chain_parts: int = 1

    @classmethod
    def of(cls, translator: Translator, workers: Workers, chain_parts: int = 1) -> Distributed:
        """Return a translator that runs on workers."""
        values = {field.name: getattr(translator, field.name) for field in fields(Translator)}
        return cls(**values, workers=workers, chain_parts=chain_parts)

    def run(
        self,
        sources: Iterable[Any],
        decoding: Decoding,
        window: int | None = None,
        skip: bool = False,
    ) -> Generator[Output | InvalidInput, None, None]:
        if self.workers is None:
            raise InvalidInput("Distributed needs workers; make it with Distributed.of")
        if isinstance(sources, str):
            raise InvalidInput("stream takes an iterable of texts, not a single text")
        parts = max(1, min(self.chain_parts, getattr(decoding.decoder, "chains", 1)))
        size = unit_size(decoding, self.workers.count, window)
        for result in self.workers.run(sources, decoding, size, parts):
            add_calls(result.calls, result.rescored)
            report_decoded(len(result.outcomes))
            for number, outcome in enumerate(result.outcomes, start=result.first + 1):
                if not isinstance(outcome, Failed):
                    yield outcome
                elif skip:
                    yield InvalidInput(outcome.reason)
                else:
                    raise InvalidInput(f"text {number}: {outcome.reason}")


class Translate:
    """Translates a column of each batch with a model that is loaded once, for Ray Data.

    `ds.map_batches(npad.scale.Translate, fn_constructor_kwargs={"decoder": "npad(chains=10)"},
    concurrency=2, batch_size=256)`. Ray Data keeps no order by default: carry a column of line
    numbers and sort by it. Leave it a CPU: with actors on all of them it waits forever
    (ray-project/ray issue 44687). Ray is not imported here: whoever makes the batches calls this.

    Args:
        model: a name for `npad.load`.
        decoder: a decoder, or its name with its fields: `beam(width=3)`.
        column: the column of the texts.
        output: the column of the translations that is added. `output`_log_prob has their
            log-probabilities (NaN for a text that failed), `output`_error why it failed, or "".
        device: as `npad.load`.
        precision: as `npad.load`.
        max_length: as `Translator.translate`.
        max_rows: as `Translator.translate`.
        max_source: tokens that a source may have.
        threads: threads of torch. Ray sets one unless the actor has `num_cpus`.
    """

    def __init__(
        self,
        model: str = "en-de",
        decoder: str | Decoder = "beam",
        column: str = "text",
        output: str = "translation",
        device: str = "auto",
        precision: str = "float32",
        max_length: int = MAX_LENGTH,
        max_rows: int = MAX_ROWS,
        max_source: int = 1000,
        threads: int | None = 1,
    ) -> None:
        decoder = DECODERS.parse(decoder) if isinstance(decoder, str) else decoder
        self.column, self.output = column, output
        self.decoding = Decoding(decoder, max_length, max_rows)
        self.worker = Worker(ModelSpec(model, device, precision, max_source, threads))

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Return the batch with the columns of the translations added."""
        if self.column not in batch:
            names = ", ".join(batch)
            raise InvalidInput(f"the batch has no column {self.column!r}; it has {names}")
        texts = tuple(
            text if isinstance(text, str) else Failed("it is not text")
            for text in batch[self.column]
        )
        outcomes = self.worker.run(Unit(0, texts, self.decoding, alternatives=0)).outcomes
        columns = {
            "": ["" if isinstance(o, Failed) else o.text for o in outcomes],
            "_log_prob": [np.nan if isinstance(o, Failed) else o.log_prob for o in outcomes],
            "_error": [o.reason if isinstance(o, Failed) else "" for o in outcomes],
        }
        return {**batch, **{self.output + end: np.array(v) for end, v in columns.items()}}
