"""Figures of decoders on test sets, looked up in a record or measured and recorded.

A report asks a `Bench` for every figure it shows, so that rendering it again measures nothing.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from npad.engine.cost import count_calls
from npad.errors import StorageError
from npad.evaluate.bootstrap import Difference, paired
from npad.evaluate.entropy import entropy_by_step
from npad.evaluate.report import distinct_texts, timed_translations
from npad.metrics.metric import TIE, LogProb, Metric, Scorer
from npad.pipelines.translation import Translator
from npad.reproduce.measured_task import TRANSLATION, Task
from npad.reproduce.record import Record
from npad.reproduce.rows import (
    Counted,
    Decoded,
    Figures,
    Output,
    Row,
    are_differences,
    are_pairs,
    are_texts,
    is_number,
    is_row,
)
from npad.search.best_of import BestOf
from npad.search.decoder import Decoder
from npad.search.exact import Exact
from npad.search.npad import NPAD
from npad.search.sampling import Sampling
from npad.signatures import signature
from npad.storage.atomic import write_atomic
from npad.storage.regular import parse_json, read_bytes

MAX_OUTPUT_BYTES = 1 << 30


@dataclass(frozen=True)
class Pairs:
    """The sources of a test set and their references, one by one."""

    sources: Sequence[Any]  # texts; the sources of other tasks are their models'
    references: Sequence[Any]  # texts, or several for each source, as the task's metrics take them


class Bench:
    """Measures decoders on named test sets and records every result in a folder.

    Args:
        folder: holds `results.jsonl` and the outputs.
        sets: the validation set first, then the test sets; their names suffice if every result
            is recorded.
        translator: returns the model trained with noise of a given σ₀; 0.0 is the model that the
            report is about. Called on the first measurement; None if every result is recorded.
        seeds: number of seeds for decoders that draw random numbers.
        max_length: longest output in tokens, end token included.
        max_rows: most rows in a batch.
        progress: called before each measurement with its key and the number of recorded results.
        task: the metrics to measure by.
    """

    def __init__(
        self,
        folder: Path,
        sets: Mapping[str, Pairs] | Sequence[str],
        translator: Callable[[float], Translator] | None = None,
        seeds: int = 3,
        max_length: int = 200,
        max_rows: int = 1024,
        progress: Callable[[str, int], None] = lambda key, recorded: None,
        task: Task = TRANSLATION,
    ) -> None:
        self.task = task
        self.folder = folder
        self.record = Record(
            folder / "results.jsonl",
            lambda key: progress(" · ".join(map(str, key)), len(self.record.results)),
        )
        self.set_names = list(sets)
        self.sets: dict[str, Pairs] = dict(sets) if isinstance(sets, Mapping) else {}
        self.seeds, self.max_length, self.max_rows = seeds, max_length, max_rows
        self.translator = cache(translator) if translator else None
        self.scorers = cache(self._scorers)

    @property
    def metric(self) -> Metric:
        """The metric that choices are made by."""
        return self.task.metrics[0]

    @property
    def measures(self) -> bool:
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
        return Row.of_dict(self._get_or_measure(key, measure, self._is_row))

    def figures(self, set_name: str, decoder: Decoder, training_sigma: float = 0.0) -> Figures:
        """Return the figures of a decoder with every seed; a single row if it draws nothing."""
        seeds = self.task.valid_seeds or self.seeds if set_name == self.valid else self.seeds
        decoders = dict.fromkeys(with_seed(decoder, seed) for seed in range(seeds))
        return Figures([self.row(set_name, seeded, training_sigma) for seeded in decoders])

    def entropy(self, set_name: str) -> list[tuple[float, int]]:
        """Return the mean entropy in nats at each step of the greedy outputs, and their number."""
        measure = partial(self._entropy, set_name)
        steps = self._get_or_measure(("entropy", set_name), measure, are_pairs)
        return [(mean, count) for mean, count in steps]

    def paired(
        self, set_name: str, decoders: Sequence[Decoder], weights: Sequence[int] = (1, -1)
    ) -> tuple[Difference, ...]:
        """Return the bootstrapped differences in NLL and in each metric, first minus second."""
        key = ("paired", set_name, *map(decoder_signature, decoders))
        return self._paired(key, [(set_name, decoder) for decoder in decoders], weights)

    def paired_sets(self, set_names: tuple[str, str], decoder: Decoder) -> tuple[Difference, ...]:
        """Return the differences between two sets of sources that have the same references."""
        key = ("paired sets", *set_names, decoder_signature(decoder))
        return self._paired(key, [(set_name, decoder) for set_name in set_names], (1, -1))

    def _paired(
        self, key: tuple[Any, ...], runs: Sequence[tuple[str, Decoder]], weights: Sequence[int]
    ) -> tuple[Difference, ...]:
        def measure() -> list[dict[str, float]]:
            compared = [self._outputs(set_name, decoder) for set_name, decoder in runs]
            log_prob = LogProb()
            probabilities = [LogProb.of(each.log_prob) for each in compared]
            differences = [paired(log_prob, probabilities, [-weight for weight in weights])]
            for i, metric in enumerate(self.task.metrics):
                statistics = [system.statistics[i] for system in compared]
                differences.append(paired(metric, statistics, weights))
            return [vars(difference) for difference in differences]

        count = 1 + len(self.task.metrics)
        values = self._get_or_measure(key, measure, lambda value: are_differences(value, count))
        return tuple(Difference(**value) for value in values)

    def exact(self, set_name: str, sentences: int, budget: int) -> list[tuple[float, bool]]:
        """Return the best log-probability of the first sentences, and whether it is proven."""
        measure = partial(self._exact, set_name, sentences, budget)
        key = ("exact", set_name, sentences, budget)
        optima = self._get_or_measure(key, measure, are_pairs)
        return [(log_prob, proven) for log_prob, proven in optima]

    def search_errors(
        self, set_name: str, decoder: Decoder, sentences: int, budget: int
    ) -> float | None:
        """Return the share of sentences with a proven optimum that the decoder missed.

        An unfinished output is a miss. None if no optimum is proven.
        """

        def measure() -> float | None:
            outputs = self._outputs(set_name, decoder)
            optima = self.exact(set_name, sentences, budget)
            missed = [
                not finished or log_prob < optimum - TIE
                for (optimum, proven), log_prob, finished in zip(
                    optima, outputs.log_prob, outputs.finished, strict=False
                )
                if proven
            ]
            return float(sum(missed)) / len(missed) if missed else None

        key = ("errors", set_name, decoder_signature(decoder), sentences, budget)
        share: float | None = self._get_or_measure(
            key, measure, lambda value: value is None or is_number(value)
        )
        return share

    def unbeaten(self, set_name: str, decoder: Decoder, rivals: Sequence[Decoder]) -> float:
        """Return the share of sources for which no rival found a more probable output."""

        def measure() -> float:
            def scores(decoder: Decoder) -> NDArray[np.float64]:
                entries = self._entries(set_name, decoder)
                return np.array([score if done else -np.inf for score, _, done in entries])

            best = np.max([scores(rival) for rival in rivals], axis=0)
            return float(np.mean(scores(decoder) >= best - TIE))

        key = ("unbeaten", set_name, *map(decoder_signature, (decoder, *rivals)))
        share: float = self._get_or_measure(key, measure, is_number)
        return share

    def examples(
        self, set_name: str, decoders: Mapping[str, Decoder], count: int
    ) -> list[dict[str, str]]:
        """Return the outputs of decoders, by name, for some sources, evenly spread over a set."""

        def measure() -> list[dict[str, str]]:
            texts = {name: self._entries(set_name, d) for name, d in decoders.items()}
            return [
                {name: entries[place][1] for name, entries in texts.items()}
                for place in self._spread(set_name, count)
            ]

        key = ("examples", set_name, count, *map(decoder_signature, decoders.values()))
        shown: list[dict[str, str]] = self._get_or_measure(key, measure, are_texts)
        return shown

    def references(self, set_name: str, count: int) -> list[dict[str, str]]:
        """Return the references of the sources of `examples`, by number."""

        def measure() -> list[dict[str, str]]:
            references = self.sets[set_name].references
            return [
                {str(number): text for number, text in enumerate(references[place])}
                for place in self._spread(set_name, count)
            ]

        shown: list[dict[str, str]] = self._get_or_measure(
            ("references", set_name, count), measure, are_texts
        )
        return shown

    def _spread(self, set_name: str, count: int) -> range:
        size = len(self.sets[set_name].references)
        return range(0, size, max(1, size // count))[:count]

    def finished(self) -> float:
        """Return the smallest share of finished outputs among all recorded rows."""
        shares = []
        for key in self.record.results:
            if key[:1] in (("row",), ("trained",)):
                shares.append(float(self.record.row(key, valid=self._is_row)["finished"]))
        return min(shares)

    def _get_or_measure(
        self, key: tuple[Any, ...], measure: Callable[[], Any], valid: Callable[[Any], bool]
    ) -> Any:
        """Return the result of a key, measured if it is not recorded; `valid` checks its form."""
        return self.record.row(key, measure if self.measures else None, valid)

    def _model(self, training_sigma: float = 0.0) -> Translator:
        assert self.translator is not None  # _get_or_measure has checked
        return self.translator(training_sigma)

    def _decode(self, set_name: str, decoder: Decoder, training_sigma: float) -> Decoded:
        with count_calls() as calls:
            translations, seconds = timed_translations(
                self._model(training_sigma),
                self.sets[set_name].sources,
                decoder,
                self.max_length,
                self.max_rows,
            )
        outputs = [
            Output(
                translation.text,
                translation.log_prob,
                translation.hypothesis.finished,
                translation.hypothesis.chain,
                distinct_texts(translation),
            )
            for translation in translations
        ]
        signed = translations[0].signature
        return Decoded(outputs, calls.search, calls.rescoring, seconds, signed)

    def _exact(self, set_name: str, sentences: int, budget: int) -> list[tuple[float, bool]]:
        sources = self.sets[set_name].sources[:sentences]
        translations = self._model().translate(sources, Exact(budget), self.max_length)
        return [
            (translation.log_prob, bool(translation.hypothesis.proven))
            for translation in translations
        ]

    def _entropy(self, set_name: str) -> list[tuple[float, int]]:
        return entropy_by_step(self._model(), self.sets[set_name].sources, self.max_length)

    def _scorers(self, set_name: str) -> list[Scorer]:
        references = self.sets[set_name].references
        return [Scorer(metric, references) for metric in self.task.metrics]

    def _is_row(self, value: Any) -> bool:
        return is_row(value, self.task.metrics)

    def _measure(self, set_name: str, decoder: Decoder, training_sigma: float) -> dict[str, Any]:
        decoded = self._decode(set_name, decoder, training_sigma)
        outputs = decoded.outputs
        texts = [output.text for output in outputs]
        counted = [scorer.statistics(texts) for scorer in self.scorers(set_name)]
        n = len(outputs)
        if not training_sigma:
            path = self._path(set_name, decoder)
            path.parent.mkdir(parents=True, exist_ok=True)
            entries = [[output.log_prob, output.text, output.finished] for output in outputs]
            write_atomic(path, json.dumps(entries, ensure_ascii=False))
        return Row(
            sentences=n,
            nll=-sum(output.log_prob for output in outputs) / n,
            length_ratio=self.metric.length_ratio(counted[0].sum(0)),
            distinct=sum(output.distinct for output in outputs) / n,
            won=sum(output.chain > 0 for output in outputs) / n,
            finished=sum(output.finished for output in outputs) / n,
            calls=decoded.calls,
            rescored=decoded.rescored,
            seconds=decoded.seconds,
            signature=decoded.signature,
            quality={
                metric.name: metric.score(statistics)
                for metric, statistics in zip(self.task.metrics, counted, strict=True)
            },
        ).to_dict()

    def _outputs(self, set_name: str, decoder: Decoder) -> Counted:
        """Return a decoder's outputs on a set; decode again if their file was deleted."""
        log_prob, texts, finished = zip(*self._entries(set_name, decoder), strict=True)
        statistics = [scorer.statistics(texts) for scorer in self.scorers(set_name)]
        return Counted(np.array(log_prob), np.array(finished), statistics)

    def _entries(self, set_name: str, decoder: Decoder) -> list[tuple[float, str, bool]]:
        """Return log-probability, text and whether it is finished, of each output."""
        self.row(set_name, decoder)
        path = self._path(set_name, decoder)
        if not os.path.lexists(path):
            self._measure(set_name, decoder, 0.0)
        try:
            entries = parse_json(read_bytes(path, MAX_OUTPUT_BYTES), str(path))
            log_prob, texts, _ = zip(*entries, strict=True)
            if not all(map(is_number, log_prob)) or not all(isinstance(t, str) for t in texts):
                raise TypeError("no log-probabilities and texts")
        except (StorageError, TypeError, ValueError) as error:
            raise StorageError(f"{path} is damaged; delete it to measure it again") from error
        return list(map(tuple, entries))

    def _path(self, set_name: str, decoder: Decoder) -> Path:
        digest = hashlib.sha256(decoder_signature(decoder).encode()).hexdigest()[:16]
        return self.folder / "outputs" / set_name / f"{digest}.json"


def decoder_signature(decoder: Decoder) -> str:
    """Return a decoder's signature without model and version."""
    return signature(decoder, None).partition("|model:")[0]


def with_seed(decoder: Decoder, seed: int) -> Decoder:
    """Return the decoder with another seed; unchanged if it draws no random numbers."""
    if isinstance(decoder, NPAD):
        inner = with_seed(decoder.inner, seed)
        noisy = decoder.chains > 1 and decoder.noise.sigma != 0
        return replace(decoder, inner=inner, seed=seed if noisy else decoder.seed)
    if isinstance(decoder, BestOf):
        return BestOf(tuple(with_seed(member, seed) for member in decoder.decoders))
    return replace(decoder, seed=seed) if isinstance(decoder, Sampling) else decoder
