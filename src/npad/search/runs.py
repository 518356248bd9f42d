"""Rows of numbers that are alike, side by side."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.int64]


def side_by_side(rows: Rows) -> Rows:
    """The order of rows [n, k] of numbers from 0, by the first, then the second and so on; of equals as they were."""
    if rows.size == 0:
        return np.arange(len(rows))
    rows = np.ascontiguousarray(rows, dtype=">i8")  # byte by byte is then number by number
    return np.argsort(rows.view(np.dtype((np.void, rows.itemsize * rows.shape[1]))).ravel(), kind="stable")


def starts(rows: NDArray[Any]) -> NDArray[np.bool_]:
    """Whether each row, of numbers or a number, starts a run of equals."""
    found = np.ones(len(rows), dtype=bool)
    differs = rows[1:] != rows[:-1]
    found[1:] = differs if rows.ndim == 1 else differs.any(1)
    return found


def place_in_run(x: Rows) -> Rows:
    """Each number's place in its run of equals: 7 7 7 4 4 -> 0 1 2 0 1."""
    place = np.arange(len(x))
    return place - np.maximum.accumulate(np.where(starts(x), place, 0))
