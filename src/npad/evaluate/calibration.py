"""Isotonic regression of a quality on a score, and how well a prediction of it is calibrated."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

FloatArray = NDArray[np.float64]

BINS = 10  # of equal counts


def isotonic(scores: ArrayLike, values: ArrayLike) -> tuple[FloatArray, FloatArray]:
    """Fit the non-decreasing function of least squared error, by pooling adjacent violators.

    Args:
        scores: [n], of which it is a function.
        values: [n], to be predicted.

    Returns:
        The ends of its constant pieces, [knots], ascending, and its values there.
    """
    distinct, place = np.unique(np.asarray(scores, float), return_inverse=True)
    sums, counts = np.bincount(place, np.asarray(values, float)), np.bincount(place)
    pieces: list[tuple[float, int, float, float]] = []  # sum, count, first score, last score
    for total, count, score in zip(sums.tolist(), counts.tolist(), distinct.tolist(), strict=True):
        piece = (total, count, score, score)
        while pieces and pieces[-1][0] * piece[1] >= piece[0] * pieces[-1][1]:  # means do not rise
            total, count, first, _ = pieces.pop()
            piece = (total + piece[0], count + piece[1], first, piece[3])
        pieces.append(piece)
    knots = [
        (score, total / count)
        for total, count, first, last in pieces
        for score in sorted({first, last})
    ]
    ends, heights = np.array(knots).T
    return ends, heights


def rank_correlation(first: ArrayLike, second: ArrayLike) -> float:
    """Return Spearman's rank correlation; equal values share their mean rank.

    Returns:
        0 if all values of one side are equal.
    """
    a, b = (ranks - ranks.mean() for ranks in map(_ranks, (first, second)))
    scale = float(np.sqrt((a @ a) * (b @ b)))
    return float(a @ b) / scale if scale else 0.0


def _ranks(values: ArrayLike) -> FloatArray:
    _, place, counts = np.unique(np.asarray(values), return_inverse=True, return_counts=True)
    ranks: FloatArray = (np.cumsum(counts) - (counts - 1) / 2)[place]
    return ranks


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
