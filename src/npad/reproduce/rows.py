"""Figures of decoders, outputs they are computed from, and checks of what a record holds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from npad.evaluate.bootstrap import Difference
from npad.metrics.metric import FloatArray, Metric


@dataclass(frozen=True)
class Row:
    """The figures of one decoder with one seed on one test set."""

    sentences: int
    nll: float  # mean over sentences, clean, end token included
    length_ratio: float  # output words over reference words
    distinct: float  # mean number of distinct texts among a sentence's hypotheses
    won: float  # share of sentences whose output a noisy chain found and the clean one did not
    finished: float  # share of outputs that ended with the end token
    calls: int  # model calls of the search
    rescored: int  # model calls of re-scoring
    seconds: float
    signature: str
    quality: Mapping[str, float] = field(default_factory=dict)  # by the name of a metric

    def __getitem__(self, name: str) -> float:
        """Return a figure by its name, or the score of a metric."""
        return self.quality[name] if name in self.quality else getattr(self, name)

    def to_dict(self) -> dict[str, Any]:
        """Return the row as it is recorded: metrics are fields among the others."""
        values = {name: getattr(self, name) for name in FIGURES}
        return values | dict(self.quality)

    @classmethod
    def of_dict(cls, values: Mapping[str, Any]) -> Row:
        """Return the row of `to_dict`."""
        figures = {name: values[name] for name in FIGURES}
        return cls(**figures, quality={k: v for k, v in values.items() if k not in FIGURES})


FIGURES = tuple(figure.name for figure in fields(Row) if figure.name != "quality")


class Output(NamedTuple):
    """The output of a decoder for one sentence."""

    text: str
    log_prob: float
    finished: bool
    chain: int  # that found it; 0 is the clean one
    distinct: int  # texts among the sentence's hypotheses


@dataclass(frozen=True)
class Decoded:
    """The outputs of one decoder with one seed on one test set, and their cost."""

    outputs: Sequence[Output]
    calls: int
    rescored: int
    seconds: float
    signature: str


@dataclass(frozen=True)
class Counted:
    """Decoded outputs by sentence, as they are compared."""

    log_prob: NDArray[np.float64]  # [sentences]
    finished: NDArray[np.bool_]  # [sentences]
    statistics: Sequence[FloatArray]  # of each metric, [sentences, k]


@dataclass(frozen=True)
class Figures:
    """The rows of one decoder, one per seed."""

    rows: Sequence[Row]

    def __getitem__(self, name: str) -> float:
        """Return the mean of a figure over seeds."""
        return statistics.fmean(row[name] for row in self.rows)

    def per_sentence(self, name: str) -> float:
        """Return the mean of a figure over seeds, divided by the number of sentences."""
        return self[name] / self.rows[0].sentences

    def spread(self, name: str) -> float:
        """Return the standard deviation of a figure over seeds; 0 for a single row."""
        values = [row[name] for row in self.rows]
        return statistics.stdev(values) if len(values) > 1 else 0.0

    def format(self, name: str, digits: int = 2) -> str:
        """Format a figure as `7.31 ± 0.02`, or as `7.31` for a single row."""
        spread = f" ± {self.spread(name):.{digits}f}" if len(self.rows) > 1 else ""
        return f"{self[name]:.{digits}f}{spread}"


def is_number(value: Any) -> bool:
    """Return whether a value from a record is a finite number."""
    return type(value) in (int, float) and math.isfinite(value)


def is_row(value: Any, metrics: Sequence[Metric]) -> bool:
    """Return whether a value from a record has the fields of a `Row` with these metrics."""
    names = {*FIGURES, *(metric.name for metric in metrics)}
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


def are_differences(value: Any, count: int) -> bool:
    """Return whether a value from a record is a list of so many `Difference`s."""
    names = {field.name for field in fields(Difference)}
    return (
        isinstance(value, list)
        and len(value) == count
        and all(isinstance(entry, dict) and entry.keys() == names for entry in value)
        and all(is_number(number) for entry in value for number in entry.values())
    )


def are_texts(value: Any) -> bool:
    """Return whether a value from a record is a list of texts by name."""
    return isinstance(value, list) and all(
        isinstance(texts, dict) and all(isinstance(text, str) for text in texts.values())
        for texts in value
    )
