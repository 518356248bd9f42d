"""Paired bootstrap (Koehn, 2004): would a difference between systems hold on other sentences?

`paired` returns differences with intervals; `compare_with_all` says what a system beats beyond
chance, corrected for the number of comparisons (Holm, 1979).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from npad.metrics.metric import FloatArray, Metric

SAMPLES = 1000  # resampled test sets of an interval
RESAMPLES = 10_000  # of p values: enough for an adjusted p below 0.05 among two hundred comparisons
MAX_DRAWN = 1 << 23  # sentences drawn at a time: 64 MiB, whatever the size of the test set
LEVEL = 95  # per cent of the resampled test sets whose difference lies in the interval
SIGNIFICANT = 0.05


@dataclass(frozen=True)
class Difference:
    """First system minus second, or a score; and its interval over resampled test sets."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:+.2f} [{self.low:+.2f}, {self.high:+.2f}]"


def paired(
    metric: Metric,
    systems: Sequence[FloatArray],
    weights: Sequence[float] = (1, -1),
    samples: int = SAMPLES,
    seed: int = 0,
) -> Difference:
    """Compare systems on the same sentences.

    Test sets of the same size are drawn with replacement, the same ones for every metric. If the
    metric is a mean, a sentence's difference within `metric.tie` counts as none.

    Args:
        metric: the metric.
        systems: the statistics [sentences, k] of each.
        weights: of the systems in the sum: (1,) is the score of one, (1, -1, -1, 1) the difference
            of two gains.
        samples: number of resampled test sets.
        seed: of the resampling.

    Returns:
        The weighted sum of the scores, with its interval.
    """
    if metric.is_mean:  # also of differences
        parts = zip(weights, systems, strict=True)
        differences = np.sum([weight * system[:, 0] for weight, system in parts], 0)
        differences = np.where(np.abs(differences) < metric.tie, 0.0, differences)
        systems, weights = [np.stack([differences, np.ones(len(differences))], -1)], (1,)
    value = sum(w * metric.score(system) for w, system in zip(weights, systems, strict=True))
    resampled = np.zeros(samples)
    for part, drawn in _draws(len(systems[0]), samples, seed):
        for weight, system in zip(weights, systems, strict=True):
            resampled[part] += weight * metric.scores(drawn @ system)
    return Difference(float(value), *interval(resampled))


def interval(values: NDArray[np.float64]) -> tuple[float, float]:
    """Return the bounds of the central 95 % of resampled values."""
    low, high = np.percentile(values, [(100 - LEVEL) / 2, (100 + LEVEL) / 2])
    return float(low), float(high)


def _draws(n: int, samples: int, seed: int) -> Iterator[tuple[slice, FloatArray]]:
    """Yield how often each of n sentences is drawn, [part, n], for some test sets at a time."""
    if n * samples <= MAX_DRAWN:
        yield slice(0, samples), _drawn_at_once(n, samples, seed)
        return
    random = np.random.default_rng(seed)
    for start in range(0, samples, step := max(1, MAX_DRAWN // n)):
        part = slice(start, min(start + step, samples))
        yield part, _draw(random, n, part.stop - part.start)


@lru_cache(maxsize=1)  # every metric of a report draws the same test sets
def _drawn_at_once(n: int, samples: int, seed: int) -> FloatArray:
    return _draw(np.random.default_rng(seed), n, samples)


def _draw(random: np.random.Generator, n: int, samples: int) -> FloatArray:
    return random.multinomial(n, np.full(n, 1 / n), size=samples).astype(np.float64)


@dataclass(frozen=True)
class Comparison:
    """A system beside another on the same sentences.

    Attributes:
        difference: first minus second, in the metric's own units, with its 95 % interval; positive
            is better unless lower is.
        p: two-sided, by paired bootstrap.
        adjusted: p, corrected for all comparisons of the first system (Holm, 1979).
        better: whether the first system's score is the better one; False for a tie.
    """

    difference: Difference
    p: float
    adjusted: float
    better: bool

    @property
    def beats(self) -> bool:
        """Whether the first system is better beyond chance."""
        return self.better and self.adjusted < SIGNIFICANT

    @property
    def is_beaten(self) -> bool:
        """Whether the second system is better beyond chance."""
        return not self.better and self.adjusted < SIGNIFICANT


def compare_with_all(
    metric: Metric, first: FloatArray, others: Mapping[str, FloatArray], seed: int = 0
) -> dict[str, Comparison]:
    """Compare a system with several others on the same sentences.

    Args:
        metric: the metric.
        first: the system's statistics [sentences, k].
        others: the others' statistics, by name.
        seed: of the resampling.
    """
    own, *resampled = _resampled(metric, [first, *others.values()], seed)
    found: dict[str, tuple[Difference, float, bool]] = {}
    for (name, statistics), qualities in zip(others.items(), resampled, strict=True):
        gains = own - qualities
        gain = float(metric.qualities(first.sum(0)) - metric.qualities(statistics.sum(0)))
        sign = -1 if metric.lower_is_better else 1
        difference = Difference(sign * gain, *sorted(sign * x for x in interval(gains)))
        found[name] = difference, _p_value(gain, gains, metric.tie), gain > metric.tie
    adjusted = dict(zip(found, holm([p for _, p, _ in found.values()]), strict=True))
    return {
        name: Comparison(difference, p, adjusted[name], better)
        for name, (difference, p, better) in found.items()
    }


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p values corrected for their number by Holm's step-down method, in the same order."""
    adjusted, largest = [0.0] * len(p_values), 0.0
    for rank, i in enumerate(np.argsort(p_values, kind="stable")):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[i]))
        adjusted[i] = largest
    return adjusted


def _p_value(gain: float, gains: FloatArray, tie: float) -> float:
    """Return twice the share of resampled test sets in which the gain is gone; 1 for a tie."""
    if abs(gain) <= tie:
        return 1.0
    gone = gains <= tie if gain > 0 else gains >= -tie
    return min(1.0, 2 * float(gone.sum() + 1) / (len(gains) + 1))


def _resampled(metric: Metric, systems: Sequence[FloatArray], seed: int) -> FloatArray:
    """Return the qualities [systems, resamples] of the same resampled test sets."""
    qualities = np.zeros((len(systems), RESAMPLES))
    for part, drawn in _draws(len(systems[0]), RESAMPLES, seed):
        for i, statistics in enumerate(systems):
            qualities[i, part] = metric.qualities(drawn @ statistics)
    return qualities
