"""Rows of numbers that are alike, side by side."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.int64]


def side_by_side(rows: Rows) -> Rows:
    """The order of rows [n, k] of numbers from 0, by the first, then the second and so on; of equals as they were."""
    if rows.size == 0:
        return np.arange(len(rows))
    rows = np.ascontiguousarray(rows, dtype=">i8")  # byte by byte is then number by number
    return np.argsort(rows.view(np.dtype((np.void, rows.itemsize * rows.shape[1]))).ravel(), kind="stable")
