"""How well a confidence tells good outputs from bad ones: ranks, AUROC, risk by coverage.

Every figure is a function of two aligned arrays, so that one bootstrap serves all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import ArrayLike

from npad.evaluate.bootstrap import SAMPLES, Difference, interval
from npad.metrics.metric import FloatArray

BINS = 10  # of the calibration error, of equal counts

Figure = Callable[[FloatArray, FloatArray], float]  # of confidences [n] and values [n]


def resampled(
    figure: Figure,
    systems: Sequence[tuple[FloatArray, FloatArray]],
    weights: Sequence[float] = (1,),
    samples: int = SAMPLES,
    seed: int = 0,
) -> Difference:
    """Return a weighted sum of a figure of several systems, with a paired bootstrap's interval.

    Args:
        figure: a function of confidences and of what they should predict.
        systems: these two arrays [n] of each, of the same inputs.
        weights: (1,) is the figure of one system, (1, -1) a difference.
        samples: number of resampled test sets.
        seed: of the resampling.
    """
    random, n = np.random.default_rng(seed), len(systems[0][0])
    places = [np.arange(n), *random.integers(n, size=(samples, n))]
    parts = [
        [weight * figure(confidence[drawn], value[drawn]) for drawn in places]
        for weight, (confidence, value) in zip(weights, systems, strict=True)
    ]
    value, *others = np.sum(parts, 0)
    return Difference(float(value), *interval(np.array(others)))


def rank_correlation(first: ArrayLike, second: ArrayLike) -> float:
    """Return Spearman's rank correlation; equal values share their mean rank.

    Returns:
        0 if all values of one side are equal.
    """
    a, b = (ranks - ranks.mean() for ranks in map(ranks_of, (first, second)))
    scale = float(np.sqrt((a @ a) * (b @ b)))
    return float(a @ b) / scale if scale else 0.0


def ranks_of(values: ArrayLike) -> FloatArray:
    """Return the ranks of values [n], from 1; equal values share their mean rank."""
    _, place, counts = np.unique(np.asarray(values), return_inverse=True, return_counts=True)
    ranks: FloatArray = (np.cumsum(counts) - (counts - 1) / 2)[place]
    return ranks


def auroc(confidence: ArrayLike, bad: ArrayLike) -> float:
    """Return the probability that a good output has more confidence than a bad one.

    Args:
        confidence: [n]; equal ones count half.
        bad: [n], true for the outputs that should have less.

    Returns:
        0.5 if all outputs are good, or all are bad.
    """
    wrong = np.asarray(bad, bool)
    pairs = int(wrong.sum()) * int((~wrong).sum())
    if not pairs:
        return 0.5
    good = ~wrong
    count = int(good.sum())
    return float(ranks_of(confidence)[good].sum() - count * (count + 1) / 2) / pairs


def risk_by_coverage(confidence: ArrayLike, losses: ArrayLike) -> FloatArray:
    """Return the mean loss of the outputs that are kept, if the most confident ones are.

    Args:
        confidence: [n]; of equal ones, each is kept in part.
        losses: [n], such as 1 for a wrong output.

    Returns:
        [n], for 1, 2, … n outputs that are kept.
    """
    _, place = np.unique(-np.asarray(confidence, float), return_inverse=True)
    shared = np.bincount(place, np.asarray(losses, float)) / np.bincount(place)
    expected = np.sort(place)  # of equal confidence, each has the mean loss
    risk: FloatArray = np.cumsum(shared[expected]) / np.arange(1, len(place) + 1)
    return risk


def share_in_certain_half(confidence: ArrayLike, losses: ArrayLike) -> float:
    """Return the share of all losses that the more certain half of the outputs has."""
    losses = np.asarray(losses, float)
    half = len(losses) // 2
    total = float(losses.sum())
    return float(risk_by_coverage(confidence, losses)[half - 1] * half) / total if total else 0.0


def calibration_error(
    scores: ArrayLike, predicted: ArrayLike, values: ArrayLike, bins: int = BINS
) -> float:
    """Return the mean over bins of |mean value − mean prediction|.

    Args:
        scores: [n], which order the sentences: the bins are of equal counts in this order.
        predicted: [n], predictions, or a single one for all.
        values: [n], what was predicted.
        bins: their number.
    """
    values = np.asarray(values, float)
    gaps = values - np.broadcast_to(np.asarray(predicted, float), values.shape)
    parts = np.array_split(gaps[np.argsort(scores, kind="stable")], min(bins, len(gaps)))
    return float(np.average([abs(part.mean()) for part in parts], weights=list(map(len, parts))))
