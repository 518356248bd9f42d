"""Places for the labels of points in a plot, so that they cover neither points nor lines."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

DISTANCE = 13.0  # of a label's centre from its point
DIRECTIONS = [math.radians(degrees) for degrees in (45, 135, -45, -135, 90, -90, 0, 180)]
SAMPLES = 40  # points of a line segment that labels keep away from


def label_offsets(
    anchors: NDArray[np.float64], lines: Sequence[NDArray[np.float64]]
) -> list[tuple[float, float]]:
    """Return the offset of each label's centre from its point.

    Each label in turn takes the direction in which it is farthest from everything drawn so far.

    Args:
        anchors: [labels, 2], the labelled points, in points of the page.
        lines: [n, 2] each, the corners of everything that is drawn, such points included.

    Returns:
        One (x, y) per label, in the same order.
    """
    drawn = np.concatenate([_samples(line) for line in lines] or [np.zeros((0, 2))])
    choices = DISTANCE * np.array([(math.cos(angle), math.sin(angle)) for angle in DIRECTIONS])
    offsets = []
    for anchor in anchors:
        far = np.hypot(*(drawn - anchor).T) > 1e-6  # a point does not repel its own label
        obstacles = drawn[far]
        centres = anchor + choices  # [directions, 2]
        gaps = np.hypot(*np.moveaxis(centres[:, None] - obstacles, -1, 0))
        nearest = gaps.min(1, initial=2 * DISTANCE).clip(max=2 * DISTANCE)
        offset = choices[int(nearest.round(1).argmax())]
        drawn = np.concatenate([drawn, [anchor + offset]])
        offsets.append((float(offset[0]), float(offset[1])))
    return offsets


def _samples(line: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return points along a line through the given corners, [n, 2]."""
    if len(line) == 1:
        return line
    parts = [np.linspace(a, b, SAMPLES) for a, b in pairwise(line)]
    return np.concatenate(parts)
