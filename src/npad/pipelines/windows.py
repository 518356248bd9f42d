"""Windows of texts: encode them in batches of similar length, and submit these for decoding."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from npad.decoding import decode
from npad.engine.memory import RowBudget
from npad.model import Model
from npad.noise.random import stable_hash
from npad.pipelines.batching import batches_by_length, row_weight
from npad.pipelines.encoding import EncodedBatch, TooLong
from npad.pipelines.overlap import Runner
from npad.pipelines.progress import report_decoded
from npad.search.decoder import Decoder
from npad.search.hypotheses import Hypothesis


class SubmittedBatch(NamedTuple):
    """Texts of a window that have been submitted for decoding."""

    places: list[int]  # of the texts in their window
    hypotheses: Callable[[], list[list[Hypothesis]]]  # returns those of each text, once decoded


class SubmittedWindow(NamedTuple):
    """A window whose texts have been submitted, except blank ones and those that are too long."""

    size: int  # texts
    batches: list[SubmittedBatch]
    too_long: dict[int, TooLong]  # by place


@dataclass(frozen=True)
class WindowDecoder:
    """Encodes windows of texts and submits them for decoding.

    Attributes:
        model: the model.
        decoder: the search.
        encode_batch: maps a window's texts and some of their places to the source of those that are
            not too long, and the others.
        max_length: tokens that an output may have.
        max_rows: rows decoded at a time.
        budget: halves the rows where memory is short.
        runner: runs the decoding.
    """

    model: Model[Any]
    decoder: Decoder
    encode_batch: Callable[[list[str], list[int]], tuple[EncodedBatch, dict[int, TooLong]]]
    max_length: int
    max_rows: int
    budget: RowBudget
    runner: Runner

    def submit_all(
        self, windows: Iterator[list[str]], on_long: Callable[[int, TooLong], None]
    ) -> Iterator[SubmittedWindow]:
        """Submit window after window, as they are asked for.

        on_long: called with the number of each text that is too long, before its window is yielded.
        """
        number = 1  # of the window's first text
        for texts in windows:
            window = self.submit(texts)
            for place, excess in sorted(window.too_long.items()):
                on_long(number + place, excess)
            yield window
            number += len(texts)

    def submit(self, texts: list[str]) -> SubmittedWindow:
        """Submit the texts that are not blank; each batch before the next is encoded."""
        window = SubmittedWindow(len(texts), [], {})
        places = [place for place, text in enumerate(texts) if text.strip()]
        lengths = [len(texts[place]) for place in places]
        for indices in batches_by_length(lengths, self.decoder.rows, self.max_rows):
            batch, too_long = self.encode_batch(texts, [places[index] for index in indices])
            if batch.places:
                hypotheses = self.runner.submit(partial(self._decode, texts, batch))
                window.batches.append(SubmittedBatch(batch.places, hypotheses))
            window.too_long.update(too_long)
        return window

    def _decode(self, texts: list[str], batch: EncodedBatch) -> list[list[Hypothesis]]:
        """Return the hypotheses of each text of a batch."""

        def decode_part(places: Sequence[int]) -> list[list[Hypothesis]]:
            source, ids = batch.part(places), [stable_hash(texts[place]) for place in places]
            decoded = decode(self.model, source, self.decoder, self.max_length, ids, self.max_rows)
            report_decoded(len(places))
            return decoded

        rows = self.decoder.rows * row_weight(len(texts[batch.places[-1]]))
        return self.budget.run(decode_part, batch.places, rows)
