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
from npad.evaluate.entropy import entropy_by_step
from npad.evaluate.report import decode_timed, distinct_texts
from npad.metrics.bleu import Bleu
from npad.metrics.metric import TIE, FloatArray, LogProb, Metric, Scorer
from npad.pipelines.translation import Translator
from npad.reproduce.record import Form, Key, Record, has_form, is_number, is_text
from npad.search.decoder import Decoder
from npad.search.exact import Exact
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
PAIRS: Form = [(is_number, lambda value: value is not None)]
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
        translator: returns the model trained with noise of a given σ₀; 0.0 is the model that the
            report is about. Called on the first measurement; None if every result is recorded.
        seeds: number of seeds for decoders that draw random numbers.
        limits: a request whose limits all decoders have.
        progress: called before each measurement with its key and the number of recorded results.
        measures: the metrics to measure by.
    """

    def __init__(
        self,
        folder: Path,
        sets: Mapping[str, EvaluationSet] | Sequence[str],
        translator: Callable[[float], Translator] | None = None,
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

    def row(self, set_name: str, decoder: Decoder, training_sigma: float = 0.0) -> Row:
        """Return the figures of a decoder with the seed it has.

        Args:
            set_name: the test set.
            decoder: the decoder, seed included.
            training_sigma: σ₀ that the model was trained with.
        """
        prefix = ("trained", training_sigma) if training_sigma else ("row",)
        key = (*prefix, set_name, decoder_signature(decoder))
        measure = partial(self._measure, set_name, decoder, training_sigma)
        row: Row = self.result(key, measure, self.row_form)
        return row

    def figures(self, set_name: str, decoder: Decoder, training_sigma: float = 0.0) -> Figures:
        """Return the figures of a decoder with every seed; a single row if it draws nothing."""
        seeded = self.seeded(set_name, decoder)
        return Figures([self.row(set_name, each, training_sigma) for each in seeded])

    def seeded(self, set_name: str, decoder: Decoder) -> list[Decoder]:
        """Return a decoder with each seed that it has on a set; itself if it draws nothing."""
        seeds = (self.measures.valid_seeds if set_name == self.valid else None) or self.seeds
        return list(dict.fromkeys(decoder.with_seed(seed) for seed in range(seeds)))

    def entropy(self, set_name: str) -> list[tuple[float, int]]:
        """Return the mean entropy in nats at each step of the greedy outputs, and their number."""
        steps = self.result(("entropy", set_name), partial(self._entropy, set_name), PAIRS)
        return [(mean, count) for mean, count in steps]

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
        return tuple(Difference(**value) for value in self.result(key, measure, form))

    def exact(self, set_name: str, sentences: int, budget: int) -> list[tuple[float, bool]]:
        """Return the best log-probability of the first sentences, and whether it is proven."""
        measure = partial(self._exact, set_name, sentences, budget)
        optima = self.result(("exact", set_name, sentences, budget), measure, PAIRS)
        return [(log_prob, proven) for log_prob, proven in optima]

    def search_errors(
        self, set_name: str, decoder: Decoder, sentences: int, budget: int
    ) -> float | None:
        """Return the share of sentences with a proven optimum that the decoder missed.

        An unfinished output is a miss. None if no optimum is proven.
        """

        def measure() -> float | None:
            outputs = self.entries(set_name, decoder)
            optima = self.exact(set_name, sentences, budget)
            missed = [
                not finished or log_prob < optimum - TIE
                for (optimum, proven), (log_prob, _, finished) in zip(optima, outputs, strict=False)
                if proven
            ]
            return float(sum(missed)) / len(missed) if missed else None

        key = ("errors", set_name, decoder_signature(decoder), sentences, budget)
        share: float | None = self.result(
            key, measure, lambda value: value is None or is_number(value)
        )
        return share

    def finished(self) -> float:
        """Return the smallest share of finished outputs among all recorded rows."""
        rows = [key for key in self.record.results if key[0] in ("row", "trained")]
        return min(float(self.result(key, None, self.row_form)["finished"]) for key in rows)

    def result(self, key: Key, measure: Callable[[], Any] | None, form: Form) -> Any:
        """Return the result of a key, measured if it is not recorded."""
        valid = partial(has_form, form=form)
        return self.record.row(key, measure if self.can_measure else None, valid)

    def _model(self, training_sigma: float = 0.0) -> Translator:
        assert self.translator is not None  # result() has checked
        return self.translator(training_sigma)

    def _decode(
        self, set_name: str, decoder: Decoder, training_sigma: float
    ) -> tuple[list[BestOutput], Row]:
        """Return a decoder's best outputs on a set, and the figures of their cost."""
        model, sources = self._model(training_sigma), self.sets[set_name].sources
        decoding = replace(self.limits, decoder=decoder)
        decoded = decode_timed(model, sources, decoding, window=max(1, len(sources)))
        outputs = []
        for output in decoded.outputs:
            best = output.hypothesis
            found = output.text, output.log_prob, best.finished, best.chain, distinct_texts(output)
            outputs.append(BestOutput(*found))
        cost = {"calls": decoded.calls, "rescored": decoded.rescored, "seconds": decoded.seconds}
        return outputs, cost | {"signature": decoded.outputs[0].signature}

    def _exact(self, set_name: str, sentences: int, budget: int) -> list[tuple[float, bool]]:
        sources = self.sets[set_name].sources[:sentences]
        translations = self._model().translate(sources, Exact(budget), self.limits.max_length)
        return [
            (translation.log_prob, bool(translation.hypothesis.proven))
            for translation in translations
        ]

    def _entropy(self, set_name: str) -> list[tuple[float, int]]:
        return entropy_by_step(self._model(), self.sets[set_name].sources, self.limits.max_length)

    def _scorers(self, set_name: str) -> list[Scorer]:
        references = self.sets[set_name].references
        return [Scorer(metric, references) for metric in self.measures.metrics]

    def _measure(self, set_name: str, decoder: Decoder, training_sigma: float) -> dict[str, Any]:
        outputs, cost = self._decode(set_name, decoder, training_sigma)
        n = len(outputs)
        texts = [output.text for output in outputs]
        counted = [scorer.statistics(texts) for scorer in self.scorers(set_name)]
        if not training_sigma:
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
            self._measure(set_name, decoder, 0.0)
        entries = parse_json(read_bytes(path, MAX_OUTPUT_BYTES), str(path))
        if not has_form(entries, [(is_number, is_text, lambda value: True)]):
            raise StorageError(f"{path} is damaged; delete it to measure it again")
        return list(map(tuple, entries))

    def _path(self, set_name: str, decoder: Decoder) -> Path:
        digest = hashlib.sha256(decoder_signature(decoder).encode()).hexdigest()[:16]
        return self.folder / "outputs" / set_name / f"{digest}.json"


def decoder_signature(decoder: Decoder) -> str:
    """Return a decoder's signature without model and version."""
    return signature(decoder, None).partition("|model:")[0]
