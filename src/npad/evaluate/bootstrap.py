"""Is one system better than another, or was it the sentences? Paired bootstrap (Koehn, 2004)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from npad.evaluate.bleu import Bleu, Counts

TIE = 1e-3  # nats: what float32 may differ by between two ways to add up the same output
LEVEL = 95  # per cent of the resampled test sets whose difference lies in the interval


@dataclass(frozen=True)
class Difference:
    """First system minus second, and the interval of that difference over resampled test sets."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:+.2f} [{self.low:+.2f}, {self.high:+.2f}]"


def paired(
    nll: Sequence[ArrayLike],
    counts: Sequence[Counts],
    weights: Sequence[int] = (1, -1),
    samples: int = 1000,
    seed: int = 0,
) -> tuple[Difference, Difference]:
    """The difference in mean NLL and in BLEU between systems on the same sentences: the first minus the second.

    nll: [sentences] of each; counts: [sentences, 10] of each. Other weights make other differences, such as that of two
    gains (1, -1, -1, 1). Test sets of the same size are drawn with replacement. Per sentence, less than TIE is nothing.
    """
    apart = np.sum(
        [weight * np.asarray(each) for weight, each in zip(weights, nll, strict=True)], 0
    )
    apart = np.where(np.abs(apart) < TIE, 0.0, apart)
    n = len(apart)
    drawn = np.random.default_rng(seed).multinomial(
        n, np.full(n, 1 / n), size=samples
    )  # [samples, sentences]
    words, whole = np.zeros(samples), 0.0
    for weight, each in zip(weights, counts, strict=True):
        words += weight * np.array([Bleu.score(summed) for summed in drawn @ each])
        whole += weight * Bleu.score(each.sum(0))
    return Difference(float(apart.mean()), *_interval(drawn @ apart / n)), Difference(
        whole, *_interval(words)
    )


def _interval(values: NDArray[np.float64]) -> tuple[float, float]:
    low, high = np.percentile(values, [(100 - LEVEL) / 2, (100 + LEVEL) / 2])
    return float(low), float(high)
