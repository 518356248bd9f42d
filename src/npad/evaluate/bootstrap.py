"""Paired bootstrap resampling (Koehn, 2004): does a difference hold on other sentences?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from npad.evaluate.bleu import Bleu, Counts

TIE = 1e-3  # nats, the largest difference between two float32 sums of the same output
MAX_DRAWN = 1 << 23  # sentences drawn at a time: 64 MiB, whatever the size of the test set
LEVEL = 95  # per cent of the resampled test sets whose difference lies in the interval


@dataclass(frozen=True)
class Difference:
    """First system minus second, and its interval over resampled test sets."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:+.2f} [{self.low:+.2f}, {self.high:+.2f}]"


def paired(
    nll: Sequence[ArrayLike],
    counts: Sequence[Counts],
    weights: Sequence[float] = (1, -1),
    samples: int = 1000,
    seed: int = 0,
    score: Callable[[Counts], float] = Bleu.score,
) -> tuple[Difference, Difference]:
    """Compare systems on the same sentences by mean NLL and by BLEU or another metric.

    Test sets of the same size are drawn with replacement. A sentence's NLL difference below TIE
    counts as none.

    Args:
        nll: [sentences] of each system.
        counts: [sentences, k] of each system, from `Bleu.counts` unless `score` is another.
        weights: of the systems in the sum; (1, -1, -1, 1) is the difference of two gains.
        samples: number of resampled test sets.
        seed: of the resampling.
        score: the metric, from counts summed over sentences, [k].

    Returns:
        The differences in mean NLL and in the metric.
    """
    differences = np.sum(
        [weight * np.asarray(values) for weight, values in zip(weights, nll, strict=True)], 0
    )
    differences = np.where(np.abs(differences) < TIE, 0.0, differences)
    n = len(differences)
    random = np.random.default_rng(seed)
    value = sum(
        weight * score(system.sum(0)) for weight, system in zip(weights, counts, strict=True)
    )
    nll_samples, score_samples = np.zeros(samples), np.zeros(samples)
    for start in range(0, samples, part := max(1, MAX_DRAWN // n)):
        stop = min(start + part, samples)
        drawn = random.multinomial(n, np.full(n, 1 / n), size=stop - start)  # [part, sentences]
        nll_samples[start:stop] = drawn @ differences / n
        for weight, system in zip(weights, counts, strict=True):
            scores = [score(summed) for summed in drawn @ system]
            score_samples[start:stop] += weight * np.array(scores)
    return (
        Difference(float(differences.mean()), *interval(nll_samples)),
        Difference(value, *interval(score_samples)),
    )


def interval(values: NDArray[np.float64]) -> tuple[float, float]:
    """Return the bounds of the central 95 % of resampled values."""
    low, high = np.percentile(values, [(100 - LEVEL) / 2, (100 + LEVEL) / 2])
    return float(low), float(high)
