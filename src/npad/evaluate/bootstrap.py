"""Is one system better than another, or was it the sentences? Paired bootstrap (Koehn, 2004)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from npad.evaluate.bleu import Bleu, Counts

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
    nll: tuple[ArrayLike, ArrayLike],
    counts: tuple[Counts, Counts],
    samples: int = 1000,
    seed: int = 0,
) -> tuple[Difference, Difference]:
    """The difference in mean NLL and in BLEU of two systems on the same sentences.

    nll: [sentences] of each; counts: [sentences, 10] of each. Test sets of the same size are drawn with replacement.
    """
    one, other = (np.asarray(each) for each in nll)
    n = len(one)
    drawn = np.random.default_rng(seed).multinomial(n, np.full(n, 1 / n), size=samples)  # [samples, sentences]
    apart = drawn @ (one - other) / n
    first, second = (np.array([Bleu.score(summed) for summed in drawn @ each]) for each in counts)
    whole = [Bleu.score(each.sum(0)) for each in counts]
    return (
        Difference(float((one - other).mean()), *_interval(apart)),
        Difference(whole[0] - whole[1], *_interval(first - second)),
    )


def _interval(values: NDArray[np.float64]) -> tuple[float, float]:
    low, high = np.percentile(values, [(100 - LEVEL) / 2, (100 + LEVEL) / 2])
    return float(low), float(high)
