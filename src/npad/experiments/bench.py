"""Figures of decoders on test sets, looked up in a record or measured and recorded.

A report asks a `Bench` for every figure it shows, so that rendering it again measures nothing.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from npad.engine.cost import count_calls
from npad.errors import StorageError
from npad.evaluate.bleu import Bleu, Counts
from npad.evaluate.bootstrap import TIE, Difference, paired
from npad.evaluate.entropy import entropy_by_step
from npad.evaluate.report import distinct_texts, timed_translations
from npad.experiments.record import NotMeasured, Record
from npad.pipelines.translation import Translator
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
    """The source sentences of a test set and their references, line by line."""

    sources: list[str]
    references: list[str]


@dataclass(frozen=True)
class Row:
    """The figures of one decoder with one seed on one test set."""

    sentences: int
    nll: float  # mean over sentences, clean, end token included
    bleu: float
    length_ratio: float  # output words over reference words
    distinct: float  # mean number of distinct texts among a sentence's hypotheses
    won: float  # share of sentences whose output a noisy chain found and the clean one did not
    finished: float  # share of outputs that ended with the end token
    calls: int  # model calls of the search
    rescored: int  # model calls of re-scoring
    seconds: float
    signature: str


@dataclass(frozen=True)
class Outputs:
    """The outputs of one decoder with one seed on one test set, by sentence."""

    log_prob: NDArray[np.float64]  # [sentences]
    finished: NDArray[np.bool_]  # [sentences]
    counts: Counts  # [sentences, 10], n-gram counts for BLEU


@dataclass(frozen=True)
class Figures:
    """The rows of one decoder, one per seed."""

    rows: Sequence[Row]

    def __getitem__(self, name: str) -> float:
        """Return the mean of a figure over seeds."""
        return statistics.fmean(getattr(row, name) for row in self.rows)

    def per_sentence(self, name: str) -> float:
        """Return the mean of a figure over seeds, divided by the number of sentences."""
        return self[name] / self.rows[0].sentences

    def spread(self, name: str) -> float:
        """Return the standard deviation of a figure over seeds; 0 for a single row."""
        values: list[float] = [getattr(row, name) for row in self.rows]
        return statistics.stdev(values) if len(values) > 1 else 0.0

    def format(self, name: str, digits: int = 2) -> str:
        """Format a figure as `7.31 ± 0.02`, or as `7.31` for a single row."""
        spread = f" ± {self.spread(name):.{digits}f}" if len(self.rows) > 1 else ""
        return f"{self[name]:.{digits}f}{spread}"


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
    ) -> None:
        self.folder, self.record = folder, Record(folder / "results.jsonl")
        self.set_names, self.sets = list(sets), sets if isinstance(sets, Mapping) else {}
        self.seeds, self.max_length, self.max_rows = seeds, max_length, max_rows
        self.progress = progress
        self.translator = cache(translator) if translator else None
        self.bleu = cache(lambda set_name: Bleu(self.sets[set_name].references))

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
        return Row(**self._get_or_measure(key, measure, is_row))

    def figures(self, set_name: str, decoder: Decoder, training_sigma: float = 0.0) -> Figures:
        """Return the figures of a decoder with every seed; a single row if it draws nothing."""
        decoders = dict.fromkeys(with_seed(decoder, seed) for seed in range(self.seeds))
        return Figures([self.row(set_name, seeded, training_sigma) for seeded in decoders])

    def entropy(self, set_name: str) -> list[tuple[float, int]]:
        """Return the mean entropy in nats at each step of the greedy outputs, and their number."""

        def measure() -> list[tuple[float, int]]:
            return entropy_by_step(self._model(), self.sets[set_name].sources, self.max_length)

        steps = self._get_or_measure(("entropy", set_name), measure, are_pairs)
        return [(mean, count) for mean, count in steps]

    def paired(
        self, set_name: str, decoders: Sequence[Decoder], weights: Sequence[int] = (1, -1)
    ) -> tuple[Difference, Difference]:
        """Return the bootstrapped differences in NLL and in BLEU, first decoder minus second."""

        def measure() -> list[dict[str, float]]:
            outputs = [self._outputs(set_name, decoder) for decoder in decoders]
            nll = [-output.log_prob for output in outputs]
            counts = [output.counts for output in outputs]
            return [vars(difference) for difference in paired(nll, counts, weights)]

        key = ("paired", set_name, *map(decoder_signature, decoders))
        nll, bleu = self._get_or_measure(key, measure, are_differences)
        return Difference(**nll), Difference(**bleu)

    def exact(self, set_name: str, sentences: int, budget: int) -> list[tuple[float, bool]]:
        """Return the best log-probability of the first sentences, and whether it is proven."""

        def measure() -> list[tuple[float, bool]]:
            sources = self.sets[set_name].sources[:sentences]
            translations = self._model().translate(sources, Exact(budget), self.max_length)
            return [
                (translation.log_prob, bool(translation.hypothesis.proven))
                for translation in translations
            ]

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

    def finished(self) -> float:
        """Return the smallest share of finished outputs among all recorded rows."""
        shares = []
        for key, value in self.record.results.items():
            if key[:1] in (("row",), ("trained",)):
                if not is_row(value):
                    raise self.record.damaged(key)
                shares.append(float(value["finished"]))
        return min(shares)

    def _get_or_measure(
        self, key: tuple[Any, ...], measure: Callable[[], Any], valid: Callable[[Any], bool]
    ) -> Any:
        """Return the result of a key, measured if it is not recorded; `valid` checks its form."""
        if key not in self.record.results:
            if self.translator is None:
                raise NotMeasured(
                    f"{self.record.path} has no result for {key}; measuring it needs a model"
                )
            self.progress(" · ".join(map(str, key)), len(self.record.results))
        value = self.record.get_or_measure(key, measure)
        if not valid(value):
            raise self.record.damaged(key)
        return value

    def _model(self, training_sigma: float = 0.0) -> Translator:
        assert self.translator is not None  # _get_or_measure has checked
        return self.translator(training_sigma)

    def _measure(self, set_name: str, decoder: Decoder, training_sigma: float) -> dict[str, Any]:
        pairs, translator = self.sets[set_name], self._model(training_sigma)
        with count_calls() as calls:
            translations, seconds = timed_translations(
                translator, pairs.sources, decoder, self.max_length, self.max_rows
            )
        counts = self.bleu(set_name).counts([translation.text for translation in translations])
        hypotheses = [translation.hypothesis for translation in translations]
        n = len(translations)
        if not training_sigma:
            path = self._path(set_name, decoder)
            path.parent.mkdir(parents=True, exist_ok=True)
            entries = [
                [translation.log_prob, translation.text, translation.hypothesis.finished]
                for translation in translations
            ]
            write_atomic(path, json.dumps(entries, ensure_ascii=False))
        row = Row(
            sentences=n,
            nll=-sum(translation.log_prob for translation in translations) / n,
            bleu=Bleu.score(counts.sum(0)),
            length_ratio=Bleu.length_ratio(counts.sum(0)),
            distinct=sum(map(distinct_texts, translations)) / n,
            won=sum(hypothesis.chain > 0 for hypothesis in hypotheses) / n,
            finished=sum(hypothesis.finished for hypothesis in hypotheses) / n,
            calls=calls.search,
            rescored=calls.rescoring,
            seconds=seconds,
            signature=translations[0].signature,
        )
        return {field.name: getattr(row, field.name) for field in fields(row)}

    def _outputs(self, set_name: str, decoder: Decoder) -> Outputs:
        """Return a decoder's outputs on a set; decode again if their file was deleted."""
        self.row(set_name, decoder)
        path = self._path(set_name, decoder)
        if not os.path.lexists(path):
            self._measure(set_name, decoder, 0.0)
        try:
            entries = parse_json(read_bytes(path, MAX_OUTPUT_BYTES), str(path))
            log_prob, texts, finished = zip(*entries, strict=True)
            if not all(map(is_number, log_prob)) or not all(isinstance(t, str) for t in texts):
                raise TypeError("no log-probabilities and texts")
        except (StorageError, TypeError, ValueError) as error:
            raise StorageError(f"{path} is damaged; delete it to measure it again") from error
        return Outputs(np.array(log_prob), np.array(finished), self.bleu(set_name).counts(texts))

    def _path(self, set_name: str, decoder: Decoder) -> Path:
        digest = hashlib.sha256(decoder_signature(decoder).encode()).hexdigest()[:16]
        return self.folder / "outputs" / set_name / f"{digest}.json"


def is_number(value: Any) -> bool:
    """Return whether a value from a record is a finite number."""
    return type(value) in (int, float) and math.isfinite(value)


def is_row(value: Any) -> bool:
    """Return whether a value from a record has the fields of a `Row`."""
    names = {field.name for field in fields(Row)}
    return (
        isinstance(value, dict)
        and value.keys() == names
        and isinstance(value["signature"], str)
        and all(is_number(value[name]) for name in names - {"signature"})
        and value["sentences"] > 0
    )


def are_pairs(value: Any) -> bool:
    """Return whether a value from a record is a list of pairs that begin with a number."""
    return isinstance(value, list) and all(
        isinstance(pair, list) and len(pair) == 2 and is_number(pair[0]) and pair[1] is not None
        for pair in value
    )


def are_differences(value: Any) -> bool:
    """Return whether a value from a record is a pair of `Difference`s."""
    names = {field.name for field in fields(Difference)}
    return (
        isinstance(value, list)
        and len(value) == 2
        and all(isinstance(each, dict) and each.keys() == names for each in value)
        and all(is_number(number) for each in value for number in each.values())
    )


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
