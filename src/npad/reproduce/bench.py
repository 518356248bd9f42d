"""Figures of decoders on test sets, looked up in a record or measured and recorded.

A report asks a `Bench` for every figure that it shows, so that rendering it again measures nothing.
"""

from __future__ import annotations

import hashlib
import json
import os
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

from npad.errors import StorageError
from npad.evaluate.bootstrap import Difference, paired
from npad.evaluate.report import decode_timed, distinct_texts
from npad.metrics.bleu import Bleu
from npad.metrics.metric import FloatArray, LogProb, Metric, Scorer
from npad.pipelines.translation import Translator
from npad.reproduce.record import Form, Key, Record, has_form, is_number, is_text
from npad.search.decoder import Decoder
from npad.search.greedy import Greedy
from npad.search.request import Decoding
from npad.signatures import signature
from npad.storage.atomic import write_atomic
from npad.storage.regular import parse_json, read_bytes

MAX_OUTPUT_BYTES = 1 << 30
LIMITS = Decoding(Greedy())  # the default limits of all decoders; its decoder is replaced
Row = Mapping[str, Any]  # the figures of a decoder with one seed on a test set, and its metrics
FIGURES: dict[str, Form] = {
    "sentences": lambda value: is_number(value) and value > 0,
    "nll": is_number,  # mean over sentences, clean, end token included
    "length_ratio": is_number,  # output words over reference words
    "distinct": is_number,  # mean number of distinct texts among a sentence's hypotheses
    "won": is_number,  # share of sentences whose output a noisy chain found, not the clean one
    "finished": is_number,  # share of outputs that ended with the end token
    "calls": is_number,  # model calls of the search
    "rescored": is_number,  # model calls of re-scoring
    "seconds": is_number,
    "signature": is_text,
}
DIFFERENCE: Form = {field.name: is_number for field in fields(Difference)}


@dataclass(frozen=True)
class EvaluationSet:
    """The sources of a test set and their references, one by one."""

    sources: Sequence[Any]  # texts; the sources of other tasks are their models'
    references: Sequence[Any]  # texts, or several for each source, as the metrics take them


@dataclass(frozen=True)
class Measures:
    """What decoders are measured by.

    Attributes:
        unit: a source, in words.
        metrics: the first is the one that choices are made by.
        legend: what the metrics are, in words.
        valid_seeds: seeds on the validation set; as many as on the others if None. Choices are
            made with the first.
    """

    unit: str
    metrics: tuple[Metric, ...]
    legend: str
    valid_seeds: int | None = None

    @property
    def names(self) -> list[str]:
        """NLL and the titles of the metrics."""
        return ["NLL", *(metric.title for metric in self.metrics)]


# The committed reports contain this legend: keep its lines as they are.
TRANSLATION = Measures(
    "sentence", (Bleu(),), "BLEU is sacrebleu's,\nof detokenised text, with its defaults."
)


@dataclass(frozen=True)
class Figures:
    """The rows of one decoder, one per seed."""

    rows: Sequence[Row]

    def __getitem__(self, name: str) -> float:
        """Return the mean of a figure over seeds."""
        return statistics.fmean(row[name] for row in self.rows)

    def per_sentence(self, name: str) -> float:
        """Return the mean of a figure over seeds, divided by the number of sentences."""
        return self[name] / float(self.rows[0]["sentences"])

    def spread(self, name: str) -> float:
        """Return the standard deviation of a figure over seeds; 0 for a single row."""
        values = [row[name] for row in self.rows]
        return statistics.stdev(values) if len(values) > 1 else 0.0

    def format(self, name: str, digits: int = 2) -> str:
        """Format a figure as `7.31 ± 0.02`, or as `7.31` for a single row."""
        spread = f" ± {self.spread(name):.{digits}f}" if len(self.rows) > 1 else ""
        return f"{self[name]:.{digits}f}{spread}"


class BestOutput(NamedTuple):
    """The best output of a decoder for one sentence."""

    text: str
    log_prob: float
    finished: bool
    chain: int  # that found it; 0 is the clean one
    distinct: int  # texts among the sentence's hypotheses


class Bench:
    """Measures decoders on named test sets and records every result in a folder.

    Args:
        folder: holds `results.jsonl` and the outputs.
        sets: the validation set first, then the test sets; their names suffice if every result
            is recorded.
        translator: returns the model. Called on the first measurement; None if every result is
            recorded.
        seeds: number of seeds for decoders that draw random numbers.
        limits: a request whose limits all decoders have.
        progress: called before each measurement with its key and the number of recorded results.
        measures: the metrics to measure by.

    Attributes:
        rehearsed: while a report is rehearsed, the rows of a search by key of what it asks for;
            nothing is measured then.
    """

    kind: Key = ("row",)  # what the keys of rows begin with
    outputs = "outputs"  # where the outputs of rows are, in the folder
    rehearsed: dict[Key, float] | None = None

    def __init__(
        self,
        folder: Path,
        sets: Mapping[str, EvaluationSet] | Sequence[str],
        translator: Callable[[], Translator] | None = None,
        seeds: int = 3,
        limits: Decoding = LIMITS,
        progress: Callable[[str, int], None] = lambda key, recorded: None,
        measures: Measures = TRANSLATION,
    ) -> None:
        self.folder, self.measures, self.seeds, self.limits = folder, measures, seeds, limits
        self.record = Record(
            folder / "results.jsonl",
            lambda key: progress(" · ".join(map(str, key)), len(self.record.results)),
        )
        self.set_names = list(sets)
        self.sets: dict[str, EvaluationSet] = dict(sets) if isinstance(sets, Mapping) else {}
        self.translator = cache(translator) if translator else None
        self.scorers = cache(self._scorers)
        self.row_form: Form = FIGURES | {metric.name: is_number for metric in measures.metrics}

    @property
    def metric(self) -> Metric:
        """The metric that choices are made by."""
        return self.measures.metrics[0]

    @property
    def can_measure(self) -> bool:
        """Whether there is a model for results that are not recorded."""
        return self.translator is not None

    @property
    def valid(self) -> str:
        """The name of the validation set."""
        return self.set_names[0]

    @property
    def tests(self) -> list[str]:
        """The names of the test sets."""
        return self.set_names[1:]

    def row(self, set_name: str, decoder: Decoder) -> Row:
        """Return the figures of a decoder with the seed it has, on a set."""
        key = (*self.kind, set_name, decoder_signature(decoder))
        measure = partial(self._measure, set_name, decoder)
        expected = dict.fromkeys(self.row_form, 1) | {"signature": ""}
        rows = len(self.sets[set_name].sources) * decoder.rows if self.rehearsed is not None else 0
        row: Row = self.result(key, measure, self.row_form, expected, rows)
        return row

    def figures(self, set_name: str, decoder: Decoder) -> Figures:
        """Return the figures of a decoder with every seed; a single row if it draws nothing."""
        return Figures([self.row(set_name, each) for each in self.seeded(set_name, decoder)])

    def seeded(self, set_name: str, decoder: Decoder) -> list[Decoder]:
        """Return a decoder with each seed that it has on a set; itself if it draws nothing."""
        seeds = (self.measures.valid_seeds if set_name == self.valid else None) or self.seeds
        return list(dict.fromkeys(decoder.with_seed(seed) for seed in range(seeds)))

    def paired(
        self, set_name: str, decoders: Sequence[Decoder], weights: Sequence[int] = (1, -1)
    ) -> tuple[Difference, ...]:
        """Return the bootstrapped differences in NLL and in each metric, first minus second."""
        key = ("paired", set_name, *map(decoder_signature, decoders))
        return self.compare_runs(key, [(set_name, decoder) for decoder in decoders], weights)

    def compare_runs(
        self, key: Key, runs: Sequence[tuple[str, Decoder]], weights: Sequence[int] = (1, -1)
    ) -> tuple[Difference, ...]:
        """Return the differences in NLL and in each metric of decoders, each on a set of its own.

        Args:
            key: of the result in the record.
            runs: sets with the same references, and decoders.
            weights: of the runs in the difference.
        """

        def measure() -> list[dict[str, float]]:
            compared = [self._statistics(set_name, decoder) for set_name, decoder in runs]
            metrics = (LogProb(), *self.measures.metrics)
            signed = [[-weight for weight in weights], *[weights] * len(self.measures.metrics)]
            by_metric = zip(metrics, zip(*compared, strict=True), signed, strict=True)
            return [vars(paired(*arguments)) for arguments in by_metric]

        form = (DIFFERENCE,) * (1 + len(self.measures.metrics))
        expected = [dict.fromkeys(DIFFERENCE, 0.0)] * len(form)
        return tuple(Difference(**value) for value in self.result(key, measure, form, expected))

    def finished(self) -> float:
        """Return the smallest share of finished outputs among all recorded rows."""
        recorded = self.record.results.values()
        return min((row["finished"] for row in recorded if has_form(row, self.row_form)), default=1)

    def result(
        self,
        key: Key,
        measure: Callable[[], Any] | None,
        form: Form,
        expected: Any = None,
        rows: float = 0,
    ) -> Any:
        """Return the result of a key, measured if it is not recorded.

        Args:
            key: what the result is of.
            measure: returns it.
            form: that it has.
            expected: stands in for it while a report is rehearsed.
            rows: of a search that measures it.
        """
        if self.rehearsed is not None:
            self.rehearsed.setdefault(key, rows)
            recorded = self.record.results.get(key)
            return recorded if has_form(recorded, form) else expected
        valid = partial(has_form, form=form)
        return self.record.row(key, measure if self.can_measure else None, valid)

    def model(self) -> Translator:
        """Return the model that is measured."""
        assert self.translator is not None  # result() has checked
        return self.translator()

    def _decode(self, set_name: str, decoder: Decoder) -> tuple[list[BestOutput], Row]:
        """Return a decoder's best outputs on a set, and the figures of their cost."""
        model, sources = self.model(), self.sets[set_name].sources
        decoding = replace(self.limits, decoder=decoder)
        decoded = decode_timed(model, sources, decoding, window=max(1, len(sources)))
        outputs = []
        for output in decoded.outputs:
            best = output.hypothesis
            found = output.text, output.log_prob, best.finished, best.chain, distinct_texts(output)
            outputs.append(BestOutput(*found))
        cost = {"calls": decoded.calls, "rescored": decoded.rescored, "seconds": decoded.seconds}
        return outputs, cost | {"signature": decoded.outputs[0].signature}

    def _scorers(self, set_name: str) -> list[Scorer]:
        references = self.sets[set_name].references
        return [Scorer(metric, references) for metric in self.measures.metrics]

    def _measure(self, set_name: str, decoder: Decoder) -> dict[str, Any]:
        outputs, cost = self._decode(set_name, decoder)
        n = len(outputs)
        texts = [output.text for output in outputs]
        counted = [scorer.statistics(texts) for scorer in self.scorers(set_name)]
        path = self._path(set_name, decoder)
        path.parent.mkdir(parents=True, exist_ok=True)
        entries = [[output.log_prob, output.text, output.finished] for output in outputs]
        write_atomic(path, json.dumps(entries, ensure_ascii=False))
        row: dict[str, Any] = {
            "sentences": n,
            "nll": -sum(output.log_prob for output in outputs) / n,
            "length_ratio": self.metric.length_ratio(counted[0].sum(0)),
            "distinct": sum(output.distinct for output in outputs) / n,
            "won": sum(output.chain > 0 for output in outputs) / n,
            "finished": sum(output.finished for output in outputs) / n,
            **cost,
        }
        for metric, values in zip(self.measures.metrics, counted, strict=True):
            row[metric.name] = metric.score(values)
        return row

    def _statistics(self, set_name: str, decoder: Decoder) -> list[FloatArray]:
        """Return the statistics of a decoder's outputs by log-probability and by each metric."""
        log_probs, texts, _ = zip(*self.entries(set_name, decoder), strict=True)
        return [
            LogProb.of(log_probs),
            *(scorer.statistics(texts) for scorer in self.scorers(set_name)),
        ]

    def entries(self, set_name: str, decoder: Decoder) -> list[tuple[float, str, bool]]:
        """Return log-probability, text and whether it is finished, of each output.

        Decodes again if the file of the outputs was deleted.
        """
        self.row(set_name, decoder)
        path = self._path(set_name, decoder)
        if not os.path.lexists(path):
            self._measure(set_name, decoder)
        entries = parse_json(read_bytes(path, MAX_OUTPUT_BYTES), str(path))
        if not has_form(entries, [(is_number, is_text, lambda value: True)]):
            raise StorageError(f"{path} is damaged; delete it to measure it again")
        return list(map(tuple, entries))

    def _path(self, set_name: str, decoder: Decoder) -> Path:
        digest = hashlib.sha256(decoder_signature(decoder).encode()).hexdigest()[:16]
        return self.folder / self.outputs / set_name / f"{digest}.json"


def decoder_signature(decoder: Decoder) -> str:
    """Return a decoder's signature without model and version."""
    return signature(decoder, None).partition("|model:")[0]
