"""npad in a pipeline that one already has: a class for Ray Data's `map_batches`.

Ray is not imported here: the class is called with batches, whoever makes them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from npad.errors import InvalidInput
from npad.scale.units import Failed, Task, Unit
from npad.scale.worker import ModelSpec, Worker
from npad.search.decoder import Decoder
from npad.search.registry import DECODERS


class Translate:
    """Translates a column of each batch with a model that is loaded once.

    `ds.map_batches(npad.scale.Translate, fn_constructor_kwargs={"decoder": "npad(chains=10)"},
    concurrency=2, batch_size=256)`. Ray Data keeps no order by default: carry a column of line
    numbers and sort by it. Leave it a CPU: with actors on all of them it waits for ever
    (ray-project/ray issue 44687).

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
        max_length: int = 200,
        max_rows: int = 1024,
        max_source: int = 1000,
        threads: int | None = 1,
    ) -> None:
        decoder = DECODERS.parse(decoder) if isinstance(decoder, str) else decoder
        self.column, self.output = column, output
        self.task = Task.of(decoder, max_length=max_length, max_rows=max_rows, alternatives=0)
        self.worker = Worker(ModelSpec(model, device, precision, max_source, threads))

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Return the batch with the columns of the translations added."""
        if self.column not in batch:
            names = ", ".join(batch)
            raise InvalidInput(f"the batch has no column {self.column!r}; it has {names}")
        texts = [
            text if isinstance(text, str) else Failed("it is no text")
            for text in batch[self.column]
        ]
        outcomes = self.worker.run(Unit(0, tuple(texts), self.task)).outcomes
        columns = {
            "": ["" if isinstance(o, Failed) else o.text for o in outcomes],
            "_log_prob": [np.nan if isinstance(o, Failed) else o.log_prob for o in outcomes],
            "_error": [o.reason if isinstance(o, Failed) else "" for o in outcomes],
        }
        return {**batch, **{self.output + end: np.array(v) for end, v in columns.items()}}
