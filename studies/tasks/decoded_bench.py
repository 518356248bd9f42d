"""Benches whose outputs are hypotheses in a file, decoded on one machine and measured on another.

A report is a program that asks a bench. Where the models are, `DecodingBench` decodes what the
report asks for and appends it to the file; elsewhere `DecodedBench` reads the file, selects and
measures.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from torch import Tensor

from npad.decoding import decode
from npad.engine.cost import count_calls
from npad.errors import InvalidInput
from npad.evaluate.bootstrap import Difference
from npad.evaluate.entropy import entropy_along
from npad.model import Model
from npad.noise.random import stable_hash
from npad.reproduce.bench import Bench, Pairs, decoder_signature, with_seed
from npad.reproduce.measured_task import Task
from npad.reproduce.record import NotMeasured
from npad.reproduce.rows import Decoded, Output
from npad.search.decoder import Decoder
from npad.search.exact import Exact
from npad.search.greedy import Greedy
from npad.search.hypotheses import Hypothesis
from npad.search.npad import NPAD
from npad.selectors import MostProbable, Selector
from npad.signatures import signature
from studies.hypotheses import (
    Candidate,
    Entry,
    append_entry,
    candidates,
    choose,
    read_entries,
    resume_entries,
)

LARGEST_BATCH = 512  # sources at a time


def without_selector(decoder: Decoder) -> tuple[Decoder, Selector]:
    """Return the decoder that selects by probability, and the selector that it had."""
    if isinstance(decoder, NPAD):
        return replace(decoder, selector=MostProbable()), decoder.selector
    return decoder, MostProbable()


class DecodedBench(Bench):
    """Measures hypotheses in a file.

    Args:
        folder: holds `results.jsonl`.
        file: FILE.jsonl.gz of hypotheses.
        set_names: the validation set first, then the test sets.
        task: the metrics to measure by.
        seeds: number of seeds for decoders that draw random numbers.
        max_length: longest output in tokens, end token included.
    """

    def __init__(
        self,
        folder: Path,
        file: Path,
        set_names: Sequence[str],
        task: Task,
        seeds: int = 3,
        max_length: int = 200,
    ) -> None:
        super().__init__(folder, set_names, seeds=seeds, max_length=max_length, task=task)
        self.file, self.entries = file, self._read(file)
        self.by_key: dict[tuple[Any, ...], Entry] = {}
        references = {e["set"]: e["references"] for e in self.entries if "references" in e}
        self.sets = {name: Pairs(range(len(r)), r) for name, r in references.items()}
        for entry in self.entries:
            if "kind" in entry:
                self.by_key[entry["kind"], entry["set"], *entry["key"]] = entry

    def _read(self, file: Path) -> list[Entry]:
        return read_entries(file)

    @property
    def measures(self) -> bool:
        return True

    def _entry(self, kind: str, set_name: str, *key: Any, keep: bool = False) -> Entry:
        entry = self.by_key.get((kind, set_name, *key))
        if entry is None or (keep and not entry["kept"]):
            raise NotMeasured(f"{self.file} has no {kind} of {key} on {set_name}; decode it first")
        return entry

    def _decode(self, set_name: str, decoder: Decoder, training_sigma: float) -> Decoded:
        plain, selector = without_selector(decoder)
        by_probability = isinstance(selector, MostProbable)
        entry = self._outputs_of(set_name, plain, keep=not by_probability)
        outputs = []
        for entries, distinct in zip(entry["candidates"], entry["distinct"], strict=True):
            ranked = [Candidate(*fields_of) for fields_of in entries]
            best = ranked[0 if by_probability else choose(ranked, selector)]
            outputs.append(Output(best.text, best.log_prob, best.finished, best.chain, distinct))
        _, _, model = entry["signature"].partition("|model:")
        signed = f"{decoder_signature(decoder)}|model:{model}"
        return Decoded(outputs, entry["calls"], entry["rescored"], entry["seconds"], signed)

    def _outputs_of(self, set_name: str, decoder: Decoder, keep: bool) -> Entry:
        return self._entry("outputs", set_name, decoder_signature(decoder), keep=keep)

    def _exact(self, set_name: str, sentences: int, budget: int) -> list[tuple[float, bool]]:
        optima = self._entry("exact", set_name, sentences, budget)["optima"]
        return [(log_prob, proven) for log_prob, proven in optima]

    def _entropy(self, set_name: str) -> list[tuple[float, int]]:
        return [(mean, count) for mean, count in self._entry("entropy", set_name)["steps"]]


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


class DecodingBench(DecodedBench):
    """Decodes what a report asks for, and what its selectors choose among.

    Only the metric that choices are made by is measured; bootstraps are left to `DecodedBench`.

    Args:
        live: the sets by name.
        max_rows: most rows in a batch.
        note: called with what was decoded.
        **more: as those of `DecodedBench`.

    Raises:
        InvalidInput: the file has hypotheses of other sets.
    """

    def __init__(
        self,
        live: Mapping[str, LiveSet],
        max_rows: int = 16384,
        note: Callable[[str], None] = lambda text: None,
        **more: Any,
    ) -> None:
        more["task"] = replace(more["task"], metrics=more["task"].metrics[:1])
        super().__init__(**more)
        self.live, self.max_rows, self.note = live, max_rows, note
        for name, content in live.items():
            references = list(content.references)
            if name not in self.sets:
                self._append({"set": name, "references": references})
                self.sets[name] = Pairs(range(len(references)), references)
            elif self.sets[name].references != references:
                raise InvalidInput(
                    f"{self.file} has hypotheses of another set {name}; choose another file"
                )

    def _read(self, file: Path) -> list[Entry]:
        return resume_entries(file)

    def _append(self, entry: Entry) -> Entry:
        append_entry(self.file, entry)
        if "kind" in entry:
            self.by_key[entry["kind"], entry["set"], *entry["key"]] = entry
        return entry

    def _decode(self, set_name: str, decoder: Decoder, training_sigma: float) -> Decoded:
        plain, selector = without_selector(decoder)
        self._outputs_of(set_name, plain, keep=not isinstance(selector, MostProbable))
        return super()._decode(set_name, plain, training_sigma)

    def keep(self, decoder: Decoder) -> None:
        """Decode all sets with all seeds, and keep every candidate."""
        plain, _ = without_selector(decoder)
        for set_name in self.set_names:
            seeds = (self.task.valid_seeds if set_name == self.valid else None) or self.seeds
            for seeded in dict.fromkeys(with_seed(plain, seed) for seed in range(seeds)):
                self._outputs_of(set_name, seeded, keep=True)

    def _paired(
        self, key: tuple[Any, ...], runs: Sequence[tuple[str, Decoder]], weights: Sequence[int]
    ) -> tuple[Difference, ...]:
        for set_name, decoder in runs:
            self.row(set_name, decoder)
        zero = Difference(*(0.0 for _ in fields(Difference)))
        return (zero,) * (1 + len(self.task.metrics))

    def _outputs_of(self, set_name: str, decoder: Decoder, keep: bool) -> Entry:
        key = decoder_signature(decoder)
        entry = self.by_key.get(("outputs", set_name, key))
        if entry is not None and (entry["kept"] or not keep):
            return entry
        live = self.live[set_name]
        text = cache(live.detokenise)
        start = time.perf_counter()
        with count_calls() as calls:
            hypotheses = self._hypotheses(live, decoder)
        seconds = time.perf_counter() - start
        kept = [candidates(of_source, text) for of_source in hypotheses]
        self.note(f"{set_name}: {key}: {seconds:.2f} s")
        return self._append(
            {
                "kind": "outputs",
                "set": set_name,
                "key": [key],
                "signature": signature(decoder, live.model),
                "seconds": round(seconds, 3),
                "calls": calls.search,
                "rescored": calls.rescoring,
                "kept": keep,
                "distinct": [len({c.text for c in of_source}) for of_source in kept],
                "candidates": kept if keep else [of_source[:1] for of_source in kept],
            }
        )

    def _hypotheses(self, live: LiveSet, decoder: Decoder) -> list[list[Hypothesis]]:
        hypotheses: list[list[Hypothesis]] = []
        for part in live.batches(decoder.rows, self.max_rows):
            source, ids = live.sources[part], live.ids[part]
            hypotheses += decode(live.model, source, decoder, self.max_length, ids, self.max_rows)
        return hypotheses

    def _exact(self, set_name: str, sentences: int, budget: int) -> list[tuple[float, bool]]:
        key = [sentences, budget]
        if ("exact", set_name, *key) not in self.by_key:
            live = self.live[set_name]
            first = replace(live, sources=live.sources[:sentences])
            best = [nbest[0] for nbest in self._hypotheses(first, Exact(budget))]
            optima = [[hypothesis.log_prob, bool(hypothesis.proven)] for hypothesis in best]
            entry = {"kind": "exact", "set": set_name, "key": key, "kept": True, "optima": optima}
            self.note(f"{set_name}: exact search")
            self._append(entry)
        return super()._exact(set_name, sentences, budget)

    def _entropy(self, set_name: str) -> list[tuple[float, int]]:
        if ("entropy", set_name) not in self.by_key:
            live = self.live[set_name]
            outputs = [nbest[0] for nbest in self._hypotheses(live, Greedy())]
            parts = live.batches(Greedy().rows, self.max_rows)
            batches = ((live.sources[part], outputs[part]) for part in parts)
            steps = [list(pair) for pair in entropy_along(live.model, batches)]
            entry = {"kind": "entropy", "set": set_name, "key": [], "kept": True, "steps": steps}
            self._append(entry)
        return super()._entropy(set_name)
