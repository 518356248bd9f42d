"""A test set from two files: sources and references, line by line."""

from __future__ import annotations

from pathlib import Path

from npad.errors import InvalidInput
from npad.text.files import read_lines


def read_pairs(source: Path, reference: Path) -> tuple[list[str], list[str]]:
    """Return the lines of both files.

    Raises:
        InvalidInput: a file cannot be read, or their numbers of lines differ.
    """
    sources, references = list(read_lines(source)), list(read_lines(reference))
    if len(sources) != len(references):
        counts = f"{source} has {len(sources):,} lines and {reference} has {len(references):,}"
        raise InvalidInput(f"{counts}; line i of both must be a pair")
    return sources, references
