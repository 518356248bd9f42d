"""Sort rows and find runs of equal rows, in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int64]


def argsort_rows(rows: IntArray) -> IntArray:
    """Return the stable lexicographic argsort of rows [n, k] of integers from 0."""
    if rows.size == 0:
        return np.arange(len(rows))
    big_endian = np.ascontiguousarray(rows, dtype=">i8")  # byte order is then number order
    as_bytes = big_endian.view(np.dtype((np.void, big_endian.itemsize * rows.shape[1])))
    return np.argsort(as_bytes.ravel(), kind="stable")


def run_starts(rows: NDArray[Any]) -> NDArray[np.bool_]:
    """Return whether each row, [n] or [n, k], starts a run of equal rows."""
    starts = np.ones(len(rows), dtype=bool)
    differs = rows[1:] != rows[:-1]
    starts[1:] = differs if rows.ndim == 1 else differs.any(1)
    return starts


def rank_in_run(values: IntArray) -> IntArray:
    """Return each entry's rank in its run of equal neighbours: 7 7 7 4 4 -> 0 1 2 0 1."""
    position = np.arange(len(values))
    return position - np.maximum.accumulate(np.where(run_starts(values), position, 0))
