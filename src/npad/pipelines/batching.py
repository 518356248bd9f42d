"""Windows of a stream of texts, and batches of texts of similar length."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from npad.pipelines.encoding import ensure_texts

WINDOW_BATCHES = 8  # batches that a stream reads ahead, to group texts of similar length
CHARACTERS_PER_ROW = 256  # a text counts as one more row for every so many characters


def windows_of(texts: Iterator[str], size: int) -> Iterator[list[str]]:
    """Yield consecutive lists of `size` texts, the last of which may be shorter."""
    while window := ensure_texts(islice(texts, size)):
        yield window


def batches_by_length(lengths: list[int], rows: int, max_rows: int) -> Iterator[list[int]]:
    """Yield the indices of texts in batches of similar length, shortest first.

    Args:
        lengths: characters of the texts.
        rows: rows that a short text takes.
        max_rows: rows that a batch may take; a long text counts for more.
    """
    batch: list[int] = []
    for index in sorted(range(len(lengths)), key=lengths.__getitem__):
        if batch and (len(batch) + 1) * rows * row_weight(lengths[index]) > max_rows:
            yield batch
            batch = []
        batch.append(index)
    if batch:
        yield batch


def row_weight(characters: int) -> int:
    """Return how many short texts' rows a text of this length counts for."""
    return 1 + characters // CHARACTERS_PER_ROW
