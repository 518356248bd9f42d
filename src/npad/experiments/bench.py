"""A model, its test sets and a record: asked for a decoder's figures, it looks them up or measures them.

So a report is a program that asks for what it shows, and running it again costs nothing.
"""

from __future__ import annotations

import hashlib
import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from npad.engine.cost import count_calls
from npad.errors import StorageError
from npad.evaluate.bleu import Bleu, Counts
from npad.evaluate.bootstrap import TIE, Difference, paired
from npad.evaluate.entropy import entropy_by_step
from npad.evaluate.report import translated
from npad.experiments.record import NotMeasured, Record
from npad.pipelines.translation import Translator
from npad.search.best_of import BestOf
from npad.search.decoder import Decoder
from npad.search.exact import Exact
from npad.search.npad import NPAD
from npad.search.sampling import Sampling
from npad.signatures import signature
from npad.storage.atomic import write_atomic


@dataclass(frozen=True)
class Pairs:
    """A test set."""

    sources: list[str]
    references: list[str]


@dataclass(frozen=True)
class Row:
    """The figures of one decoder with one seed on one set."""

    sentences: int
    nll: float  # mean over sentences, clean, end symbol included
    bleu: float
    length_ratio: float
    distinct: float  # different texts among a sentence's hypotheses, on average
    won: float  # share of sentences whose output a noisy chain found and the clean one did not
    finished: float
    calls: int
    rescored: int
    seconds: float
    signature: str


@dataclass(frozen=True)
class Outputs:
    """What one decoder with one seed returned on one set, sentence by sentence."""

    log_prob: NDArray[np.float64]
    finished: NDArray[np.bool_]
    counts: Counts  # BLEU's


@dataclass(frozen=True)
class Figures:
    """The rows of one decoder, one a seed."""

    rows: Sequence[Row]

    def __getitem__(self, name: str) -> float:
        """The mean over seeds."""
        return statistics.fmean(getattr(row, name) for row in self.rows)

    def each(self, name: str) -> float:
        """The mean a sentence."""
        return self[name] / self.rows[0].sentences

    def spread(self, name: str) -> float:
        """The standard deviation over seeds; 0 where there is no chance in it."""
        return (
            statistics.stdev(getattr(row, name) for row in self.rows) if len(self.rows) > 1 else 0.0
        )

    def shown(self, name: str, digits: int = 2) -> str:
        """`7.31 ± 0.02`."""
        spread = f" ± {self.spread(name):.{digits}f}" if len(self.rows) > 1 else ""
        return f"{self[name]:.{digits}f}{spread}"


class Bench:
    """The figures of decoders on sets, the first of which is the validation set.

    translator: gives the model trained with noise of some σ₀, the one that the report is about for 0. It is asked
    when something has to be measured; None where all of it has been.
    """

    def __init__(
        self,
        folder: Path,
        sets: Mapping[str, Pairs] | Sequence[str],
        translator: Callable[[float], Translator] | None = None,
        seeds: int = 3,
        max_length: int = 200,
        max_rows: int = 1024,
        watch: Callable[[str, int], None] = lambda what, done: None,
    ) -> None:
        self.folder, self.record = folder, Record(folder / "results.jsonl")
        self.names, self.sets = list(sets), sets if isinstance(sets, Mapping) else {}
        self.seeds, self.max_length, self.max_rows, self.watch = seeds, max_length, max_rows, watch
        self.translator = cache(translator) if translator else None
        self.bleu = cache(lambda where: Bleu(self.sets[where].references))

    @property
    def valid(self) -> str:
        return self.names[0]

    @property
    def tests(self) -> list[str]:
        return self.names[1:]

    def row(self, where: str, decoder: Decoder, trained: float = 0.0) -> Row:
        """One decoder as it is, with its own seed; of the model trained with noise, where so asked."""
        key = ("trained", trained) if trained else ("row",)
        return Row(
            **self.once(
                (*key, where, spelt(decoder)), lambda: self._measure(where, decoder, trained)
            )
        )

    def figures(self, where: str, decoder: Decoder, trained: float = 0.0) -> Figures:
        """A decoder with several seeds, or with one where there is no chance in it."""
        decoders = dict.fromkeys(seeded(decoder, seed) for seed in range(self.seeds))
        return Figures([self.row(where, one, trained) for one in decoders])

    def entropy(self, where: str) -> list[tuple[float, int]]:
        """Mean entropy in nats at each step of the greedy outputs, and over how many."""

        def measure() -> list[tuple[float, int]]:
            return entropy_by_step(self._model(), self.sets[where].sources, self.max_length)

        return [(mean, count) for mean, count in self.once(("entropy", where), measure)]

    def paired(
        self, where: str, decoders: Sequence[Decoder], weights: Sequence[int] = (1, -1)
    ) -> tuple[Difference, Difference]:
        """The difference in NLL and BLEU between decoders, with their own seeds: the first minus the second."""

        def measure() -> list[dict[str, float]]:
            outputs = [self._outputs(where, decoder) for decoder in decoders]
            nll, counts = [-one.log_prob for one in outputs], [one.counts for one in outputs]
            return [vars(difference) for difference in paired(nll, counts, weights)]

        nll, bleu = self.once(("paired", where, *map(spelt, decoders)), measure)
        return Difference(**nll), Difference(**bleu)

    def exact(self, where: str, sentences: int, budget: int) -> list[tuple[float, bool]]:
        """Of the first sentences of a set: the log-probability of the best output, and whether it is proven."""

        def measure() -> list[tuple[float, bool]]:
            found = self._model().translate(
                self.sets[where].sources[:sentences], Exact(budget), self.max_length
            )
            return [(one.log_prob, bool(one.hypothesis.proven)) for one in found]

        return [
            (score, proven)
            for score, proven in self.once(("exact", where, sentences, budget), measure)
        ]

    def search_errors(
        self, where: str, decoder: Decoder, sentences: int, budget: int
    ) -> float | None:
        """The share of sentences with a proven optimum whose output is less probable, or never ended; None: no such."""

        def measure() -> float | None:
            found = self._outputs(where, decoder)
            best = self.exact(where, sentences, budget)
            missed = [
                not ended or score < optimum - TIE
                for (optimum, proven), score, ended in zip(
                    best, found.log_prob, found.finished, strict=False
                )
                if proven
            ]
            return float(sum(missed)) / len(missed) if missed else None

        share: float | None = self.once(
            ("errors", where, spelt(decoder), sentences, budget), measure
        )
        return share

    def finished(self) -> float:
        """The smallest share of outputs that ended by themselves, of all rows so far."""
        return min(
            float(value["finished"])
            for key, value in self.record.known.items()
            if key[0] in ("row", "trained")
        )

    def once(self, key: tuple[Any, ...], measure: Callable[[], Any]) -> Any:
        if key not in self.record.known:
            if self.translator is None:
                raise NotMeasured(f"{self.record.path} lacks {key}, and there is no model to ask")
            self.watch(" · ".join(map(str, key)), len(self.record.known))
        return self.record.once(key, measure)

    def _model(self, trained: float = 0.0) -> Translator:
        assert self.translator is not None  # as `once` has made sure
        return self.translator(trained)

    def _measure(self, where: str, decoder: Decoder, trained: float) -> dict[str, Any]:
        pairs, translator = self.sets[where], self._model(trained)
        with count_calls() as calls:
            outputs, seconds = translated(
                translator, pairs.sources, decoder, self.max_length, self.max_rows
            )
        counts = self.bleu(where).counts([one.text for one in outputs])
        n = len(outputs)
        if not trained:
            path = self._path(where, decoder)
            path.parent.mkdir(parents=True, exist_ok=True)
            kept = [[one.log_prob, one.text, one.hypothesis.finished] for one in outputs]
            write_atomic(path, json.dumps(kept, ensure_ascii=False))
        row = Row(
            sentences=n,
            nll=-sum(one.log_prob for one in outputs) / n,
            bleu=Bleu.score(counts.sum(0)),
            length_ratio=Bleu.length_ratio(counts.sum(0)),
            distinct=sum(len({each.text for each in (one, *one.alternatives)}) for one in outputs)
            / n,
            won=sum(one.hypothesis.chain > 0 for one in outputs) / n,
            finished=sum(one.hypothesis.finished for one in outputs) / n,
            calls=calls.search,
            rescored=calls.rescoring,
            seconds=seconds,
            signature=outputs[0].signature,
        )
        return {field.name: getattr(row, field.name) for field in fields(row)}

    def _outputs(self, where: str, decoder: Decoder) -> Outputs:
        """What a decoder returned on a set; written down again, should that be gone."""
        self.row(where, decoder)
        path = self._path(where, decoder)
        if not path.is_file():
            self._measure(where, decoder, 0.0)
        try:
            log_prob, texts, finished = zip(
                *json.loads(path.read_text(encoding="utf-8")), strict=True
            )
        except ValueError as error:
            raise StorageError(f"{path} is damaged; delete it to measure it again") from error
        return Outputs(np.array(log_prob), np.array(finished), self.bleu(where).counts(texts))

    def _path(self, where: str, decoder: Decoder) -> Path:
        name = hashlib.sha256(spelt(decoder).encode()).hexdigest()[:16]
        return self.folder / "outputs" / where / f"{name}.json"


def spelt(decoder: Decoder) -> str:
    """A decoder's signature without model and version."""
    return signature(decoder, None).partition("|model:")[0]


def seeded(decoder: Decoder, seed: int) -> Decoder:
    """The decoder with another seed, wherever chance plays a part in it."""
    if isinstance(decoder, NPAD):
        inner = seeded(decoder.inner, seed)
        noisy = decoder.chains > 1 and decoder.noise.sigma != 0
        return replace(decoder, inner=inner, seed=seed if noisy else decoder.seed)
    if isinstance(decoder, BestOf):
        return BestOf(tuple(seeded(one, seed) for one in decoder.decoders))
    return replace(decoder, seed=seed) if isinstance(decoder, Sampling) else decoder
