"""Units of work: what a driver sends to a worker, and what comes back. Plain data only."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice, pairwise
from typing import Any

from npad.errors import InvalidInput
from npad.pipelines.outputs import Translation
from npad.pipelines.pipeline import WINDOW_BATCHES
from npad.search.chain_range import ChainRange
from npad.search.decoder import Decoder, ensure_decoder
from npad.search.npad import NPAD
from npad.search.registry import DECODERS
from npad.specs import label
from npad.validation import ensure_integer

UNITS_PER_WORKER = 4  # at least so many where the corpus allows, so that workers end together


@dataclass(frozen=True)
class Failed:
    """A text that has no translation, and why."""

    reason: str


@dataclass(frozen=True)
class Task:
    """How units are decoded.

    Attributes:
        decoder: the decoder as `npad.specs.label` writes it.
        max_length: tokens that an output may have, its end token included.
        max_rows: rows decoded at a time; it decides memory and speed, not the result.
        alternatives: hypotheses that a worker returns beside the best; None for all.
    """

    decoder: str
    max_length: int = 200
    max_rows: int = 1024
    alternatives: int | None = None

    @classmethod
    def of(cls, decoder: Decoder, **limits: Any) -> Task:
        """Return the task of a decoder.

        Raises:
            InvalidInput: the decoder holds a function or a class that no other process knows.
        """
        ensure_decoder(decoder)
        text = label(decoder)
        try:
            same = DECODERS.parse(text) == decoder
        except InvalidInput:
            same = False
        if not same:
            raise InvalidInput(
                f"{text} cannot be sent to workers: it holds parts that are not registered by "
                "name; use registered parts, or translate in this process"
            )
        task = cls(text, **limits)
        ensure_integer("max_length", task.max_length, 1)
        ensure_integer("max_rows", task.max_rows, 1)
        return task

    def parse(self) -> Decoder:
        """Return the decoder."""
        decoder: Decoder = DECODERS.parse(self.decoder)
        return decoder

    def unit_size(self, workers: int, texts: int | None = None) -> int:
        """Return texts per unit: eight batches, or fewer where that keeps all workers busy."""
        size = WINDOW_BATCHES * max(1, self.max_rows // self.parse().rows)
        if texts is None:
            return size
        return max(1, min(size, -(-texts // (UNITS_PER_WORKER * workers))))


@dataclass(frozen=True)
class Unit:
    """Consecutive texts, and the range of NPAD's chains to run for them.

    Attributes:
        first: the number of the first text, from 0.
        texts: the texts; a `Failed` stands for one that could not be read.
        task: how to decode them.
        chains: [start, stop) of NPAD's chains; None for the whole decoder.
    """

    first: int
    texts: tuple[str | Failed, ...]
    task: Task
    chains: tuple[int, int] | None = None

    def halves(self) -> tuple[Unit, Unit] | None:
        """Return two smaller units: half the texts each, or half the chains of a single text.

        None if there is one text, and one chain or no range of chains.
        """
        if len(self.texts) > 1:
            middle = len(self.texts) // 2
            head = replace(self, texts=self.texts[:middle])
            return head, replace(self, first=self.first + middle, texts=self.texts[middle:])
        if self.chains is None or self.chains[1] - self.chains[0] < 2:
            return None
        start, stop = self.chains
        middle = (start + stop) // 2
        return replace(self, chains=(start, middle)), replace(self, chains=(middle, stop))


Outcome = Translation | Failed


@dataclass(frozen=True)
class Result:
    """The outcomes of a unit.

    Attributes:
        first: the number of the first text.
        outcomes: one per text. Of a chain range, a translation holds the distinct candidates, in
            the order of the chains.
        model: the model's name, for signatures.
        calls: model calls of the search.
        rescored: model calls of re-scoring.
        near_ties: texts whose two best hypotheses are nearly as probable (`NEAR_TIE`).
        halved: whether memory was short, so that parts ran one after the other.
    """

    first: int
    outcomes: tuple[Outcome, ...]
    model: str = ""
    calls: int = 0
    rescored: int = 0
    near_ties: int = 0
    halved: bool = False

    def joined(self, other: Result) -> Result:
        """Return this result and that of the following texts, or of the same text's next chains."""
        outcomes = (*self.outcomes, *other.outcomes)
        if other.first < self.first + len(self.outcomes):  # other chains of the last text
            last = join_chains(self.outcomes[-1], other.outcomes[0])
            outcomes = (*self.outcomes[:-1], last, *other.outcomes[1:])
        return Result(
            self.first,
            outcomes,
            self.model or other.model,
            self.calls + other.calls,
            self.rescored + other.rescored,
            self.near_ties + other.near_ties,
            self.halved or other.halved,
        )


def candidates_of(translation: Translation) -> tuple[Translation, ...]:
    """Return a translation and its alternatives as equals."""
    return replace(translation, alternatives=()), *translation.alternatives


def join_chains(first: Outcome, second: Outcome) -> Outcome:
    """Return the candidates of two chain ranges of one text."""
    if isinstance(first, Failed):
        return first
    if isinstance(second, Failed):
        return second
    return replace(first, alternatives=(*first.alternatives, *candidates_of(second)))


def units_of(
    texts: Iterable[str | Failed], task: Task, size: int, chain_parts: int = 1, first: int = 0
) -> Iterator[Unit]:
    """Yield units of `size` consecutive texts; with several `chain_parts`, one per range of chains.

    Args:
        texts: the texts, read as units are taken.
        task: how to decode them.
        size: texts per unit.
        chain_parts: parts of about equal size that NPAD's chains are divided into.
        first: the number of the first text.

    Raises:
        InvalidInput: chains are to be divided and the decoder is not NPAD, or has fewer chains.
    """
    ensure_integer("size", size, 1)
    ranges = chain_ranges(task.parse(), chain_parts)
    texts = iter(texts)
    while unit := tuple(islice(texts, size)):
        for chains in ranges:
            yield Unit(first, unit, task, chains)
        first += len(unit)


def chain_ranges(decoder: Decoder, parts: int) -> list[tuple[int, int] | None]:
    """Return `parts` consecutive ranges of NPAD's chains; [None] for a single part."""
    ensure_integer("chain parts", parts, 1)
    if parts == 1:
        return [None]
    if not isinstance(decoder, NPAD) or decoder.chains < parts:
        raise InvalidInput(
            f"{parts} parts of chains need NPAD with at least {parts} chains, not {decoder.title}"
        )
    bounds = [decoder.chains * part // parts for part in range(parts + 1)]
    ranges = list(pairwise(bounds))
    for chains in ranges:
        ChainRange(decoder, *chains)  # refuses a selector that needs all chains in one place
    return [*ranges]
