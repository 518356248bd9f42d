"""A translator whose texts are translated on an engine: for evaluation and experiments."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from dataclasses import dataclass, fields
from typing import Any

from npad.engine.cost import add_calls
from npad.errors import InvalidInput
from npad.pipelines.outputs import Output
from npad.pipelines.pipeline import report_decoded
from npad.pipelines.translation import Translator
from npad.scale import chains
from npad.scale.engine import Engine
from npad.scale.units import Failed, Task
from npad.search.npad import NPAD
from npad.search.request import Decoding


@dataclass(frozen=True)
class Distributed(Translator):
    """A translator whose `translate` and `stream` run on an engine's workers.

    Everything else, such as `score` and `too_long`, runs in this process, with the model that it
    has loaded. The workers' model calls are added to this process' counters.

    Attributes:
        engine: its workers must have loaded the same model.
        chain_parts: parts that NPAD's chains are divided into, each of them a unit.
    """

    engine: Engine | None = None
    chain_parts: int = 1

    @classmethod
    def of(cls, translator: Translator, engine: Engine, chain_parts: int = 1) -> Distributed:
        """Return a translator that runs on an engine."""
        values = {field.name: getattr(translator, field.name) for field in fields(Translator)}
        return cls(**values, engine=engine, chain_parts=chain_parts)

    def run(
        self,
        sources: Iterable[Any],
        decoding: Decoding,
        window: int | None = None,
        skip: bool = False,
    ) -> Generator[Output | InvalidInput, None, None]:
        if self.engine is None:
            raise InvalidInput("Distributed needs an engine; make it with Distributed.of")
        if isinstance(sources, str):
            raise InvalidInput("stream takes an iterable of texts, not a single text")
        decoder = decoding.decoder
        task = Task.of(decoder, max_length=decoding.max_length, max_rows=decoding.max_rows)
        parts = min(self.chain_parts, decoder.chains) if isinstance(decoder, NPAD) else 1
        size = task.unit_size(self.engine.workers, window)
        for result in chains.run(self.engine, sources, task, size, parts):
            add_calls(result.calls, result.rescored)
            report_decoded(len(result.outcomes))
            for number, outcome in enumerate(result.outcomes, start=result.first + 1):
                if not isinstance(outcome, Failed):
                    yield outcome
                elif skip:
                    yield InvalidInput(outcome.reason)
                else:
                    raise InvalidInput(f"text {number}: {outcome.reason}")
