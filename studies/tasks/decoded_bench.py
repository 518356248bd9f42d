"""A bench whose outputs are hypotheses in a file, decoded on one machine and measured on another.

Where the models are, the bench decodes what a report asks for and appends it to the file;
elsewhere it reads the file, selects and measures.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any

from torch import Tensor

from npad.decoding import decode
from npad.engine.cost import count_calls
from npad.errors import InvalidInput
from npad.evaluate.bootstrap import Difference
from npad.hypotheses import Hypothesis
from npad.model import Model
from npad.noise.random import stable_hash
from npad.reproduce.bench import (
    LIMITS,
    BestOutput,
    EvaluationSet,
    Measures,
    Row,
    decoder_signature,
)
from npad.reproduce.record import Key, NotMeasured, Record
from npad.search.decoder import Decoder
from npad.search.exact import Exact
from npad.search.greedy import Greedy
from npad.search.request import Decoding
from npad.selectors import MostProbable, Selector
from npad.signatures import signature
from studies.beyond.bench import BeyondBench
from studies.beyond.entropy import entropy_along
from studies.hypotheses import Candidate, candidates, choose

LARGEST_BATCH = 512  # sources at a time
BY_PROBABILITY = MostProbable()


@dataclass(frozen=True)
class LiveSet:
    """A test set and the model that decodes it."""

    model: Model[Any]
    detokenise: Callable[[tuple[int, ...]], str]
    sources: Sequence[Tensor]  # like sizes next to each other; on the model's device
    references: Sequence[Any]

    @cached_property
    def ids(self) -> list[int]:
        """Keys of the noise, by content."""
        return [stable_hash(source.cpu().numpy().tobytes()) for source in self.sources]

    def batches(self, rows: int, max_rows: int) -> Iterator[slice]:
        """Yield places of the sources in batches of nearly the same size."""
        n = len(self.sources)
        largest = max(1, min(LARGEST_BATCH, max_rows // rows))
        size = -(-n // -(-n // largest))
        for start in range(0, n, size):
            yield slice(start, min(start + size, n))


class DecodedBench(BeyondBench):
    """Measures hypotheses in a file, and decodes those that it lacks where the models are.

    Args:
        folder: holds `results.jsonl`.
        file: FILE.jsonl.gz, the record of the hypotheses.
        set_names: the validation set first, then the test sets.
        measures: the metrics to measure by.
        seeds: number of seeds for decoders that draw random numbers.
        limits: a request whose limits all decoders have.
        live: the models and their sources by set; nothing is decoded without.
        before: called before a decoder runs; it may refuse by an exception.
        note: called with what was decoded.

    Raises:
        InvalidInput: the file has hypotheses of other sets.
    """

    def __init__(
        self,
        folder: Path,
        file: Path,
        set_names: Sequence[str],
        measures: Measures,
        seeds: int = 3,
        limits: Decoding = LIMITS,
        live: Mapping[str, LiveSet] | None = None,
        before: Callable[[Key], object] = lambda key: None,
        note: Callable[[str], None] = lambda text: None,
    ) -> None:
        super().__init__(folder, set_names, seeds=seeds, limits=limits, measures=measures)
        self.file, self.live, self.note = file, live or {}, note
        self.hypotheses = Record(file, before if live else self._refuse)
        for name, content in self.live.items():
            references = list(content.references)
            if self.hypotheses.row(("references", name), partial(list, references)) != references:
                raise InvalidInput(
                    f"{file} has hypotheses of another set {name}; choose another file"
                )
        for key, value in self.hypotheses.results.items():
            if key[0] == "references":
                self.sets[key[1]] = EvaluationSet(range(len(value)), value)

    @property
    def can_measure(self) -> bool:
        return True

    def _refuse(self, key: Key) -> None:
        raise NotMeasured(f"{self.file} has no {' of '.join(map(str, key))}; decode it first")

    def keep(self, decoder: Decoder) -> None:
        """Decode all sets with all seeds, and keep every candidate."""
        for set_name in self.set_names:
            for seeded in self.seeded(set_name, without_selector(decoder)[0]):
                self._outputs_of(set_name, seeded, keep=True)

    def _decode(self, set_name: str, decoder: Decoder) -> tuple[list[BestOutput], Row]:
        plain, selector = without_selector(decoder)
        entry = self._outputs_of(set_name, plain, keep=selector != BY_PROBABILITY)
        outputs = []
        for entries, distinct in zip(entry["candidates"], entry["distinct"], strict=True):
            ranked = [Candidate(*values) for values in entries]
            best = ranked[0 if selector == BY_PROBABILITY else choose(ranked, selector)]
            outputs.append(
                BestOutput(best.text, best.log_prob, best.finished, best.chain, distinct)
            )
        _, _, model = entry["signature"].partition("|model:")
        signed = f"{decoder_signature(decoder)}|model:{model}"
        cost = {name: entry[name] for name in ("calls", "rescored", "seconds")}
        return outputs, cost | {"signature": signed}

    def _outputs_of(self, set_name: str, decoder: Decoder, keep: bool) -> dict[str, Any]:
        """Return the best outputs of a decoder, or all its candidates if they are kept."""
        name = decoder_signature(decoder)
        kept: Key = ("candidates", set_name, name)
        keep = keep or kept in self.hypotheses.results

        def measure() -> dict[str, Any]:
            live = self.live[set_name]
            start = time.perf_counter()
            with count_calls() as calls:
                hypotheses = self._hypotheses(live, decoder)
            seconds = time.perf_counter() - start
            text = cache(live.detokenise)
            found = [candidates(of_source, text) for of_source in hypotheses]
            self.note(f"{set_name}: {name}: {seconds:.2f} s")
            return {
                "signature": signature(decoder, live.model),
                "seconds": round(seconds, 3),
                "calls": calls.search,
                "rescored": calls.rescoring,
                "distinct": [len({c.text for c in of_source}) for of_source in found],
                "candidates": found if keep else [of_source[:1] for of_source in found],
            }

        entry: dict[str, Any] = self.hypotheses.row(
            kept if keep else ("outputs", set_name, name), measure
        )
        return entry

    def _hypotheses(self, live: LiveSet, decoder: Decoder) -> list[list[Hypothesis]]:
        hypotheses: list[list[Hypothesis]] = []
        limits = self.limits
        for part in live.batches(decoder.rows, limits.max_rows):
            source, ids = live.sources[part], live.ids[part]
            hypotheses += decode(
                live.model, source, decoder, limits.max_length, ids, limits.max_rows
            )
        return hypotheses

    def compare_runs(
        self, key: Key, runs: Sequence[tuple[str, Decoder]], weights: Sequence[int] = (1, -1)
    ) -> tuple[Difference, ...]:
        if not self.live:
            return super().compare_runs(key, runs, weights)
        for set_name, decoder in runs:  # a bootstrap needs no model: it is left to the report
            self.row(set_name, decoder)
        zero = Difference(*(0.0 for _ in fields(Difference)))
        return (zero,) * (1 + len(self.measures.metrics))

    def _exact(self, set_name: str, sentences: int, budget: int) -> list[tuple[float, bool]]:
        def measure() -> list[tuple[float, bool]]:
            live = self.live[set_name]
            first = replace(live, sources=live.sources[:sentences])
            best = [nbest[0] for nbest in self._hypotheses(first, Exact(budget))]
            self.note(f"{set_name}: exact search")
            return [(hypothesis.log_prob, bool(hypothesis.proven)) for hypothesis in best]

        optima = self.hypotheses.row(("exact", set_name, sentences, budget), measure)
        return [(log_prob, proven) for log_prob, proven in optima]

    def _entropy(self, set_name: str) -> list[tuple[float, int]]:
        def measure() -> list[tuple[float, int]]:
            live = self.live[set_name]
            outputs = [nbest[0] for nbest in self._hypotheses(live, Greedy())]
            parts = live.batches(Greedy().rows, self.limits.max_rows)
            return entropy_along(live.model, ((live.sources[p], outputs[p]) for p in parts))

        steps = self.hypotheses.row(("entropy", set_name), measure)
        return [(mean, count) for mean, count in steps]


def without_selector(decoder: Decoder) -> tuple[Decoder, Selector]:
    """Return the decoder that selects by probability, and the selector that it had."""
    selector: Selector | None = getattr(decoder, "selector", None)
    if selector is None:
        return decoder, BY_PROBABILITY
    return replace(decoder, selector=BY_PROBABILITY), selector  # type: ignore[type-var]
