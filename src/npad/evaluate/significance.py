"""What a system beats beyond chance: paired bootstrap against several others, corrected by Holm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from npad.evaluate.bootstrap import MAX_DRAWN, Difference, interval
from npad.evaluate.metrics import Metric

FloatArray = NDArray[np.float64]

RESAMPLES = 10_000  # enough for an adjusted p below 0.05 among two hundred comparisons
SIGNIFICANT = 0.05


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
    random, n = np.random.default_rng(seed), len(systems[0])
    qualities = np.zeros((len(systems), RESAMPLES))
    for start in range(0, RESAMPLES, step := max(1, MAX_DRAWN // n)):
        part = slice(start, min(start + step, RESAMPLES))
        size = part.stop - part.start
        drawn = random.multinomial(n, np.full(n, 1 / n), size=size).astype(np.float64)
        for i, statistics in enumerate(systems):
            qualities[i, part] = metric.qualities(drawn @ statistics)
    return qualities
