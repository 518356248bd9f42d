"""BLEU of words and marks, for choices in training where sacrebleu is not installed.

Its words are those of sacrebleu's default, 13a, but for HTML entities; reports use sacrebleu.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence

# Marks that are words of their own: ASCII ones, full stop and comma unless within a number, and a
# hyphen after a digit.
MARKS = (
    (re.compile(r"([!-&(-+/:-@\[-`{-~])"), r" \1 "),
    (re.compile(r"([^0-9])([.,])"), r"\1 \2 "),
    (re.compile(r"([.,])([^0-9])"), r" \1 \2"),
    (re.compile(r"([0-9])(-)"), r"\1 \2 "),
)
MAX_ORDER = 4

NGrams = Counter[tuple[str, ...]]


class WordBleu:
    """Corpus BLEU against fixed references, smoothed as sacrebleu does by default."""

    def __init__(self, references: Sequence[str]) -> None:
        self.references = [n_grams(text) for text in references]

    def __call__(self, outputs: Sequence[str]) -> float:
        """Return the BLEU of one output per reference, in per cent."""
        matches, totals, lengths = [0] * MAX_ORDER, [0] * MAX_ORDER, [0, 0]
        for text, reference in zip(outputs, self.references, strict=True):
            found = n_grams(text)
            for gram, count in found.items():
                matches[len(gram) - 1] += min(count, reference[gram])
                totals[len(gram) - 1] += count
            for i, grams in enumerate((found, reference)):
                lengths[i] += sum(count for gram, count in grams.items() if len(gram) == 1)
        return score(matches, totals, *lengths)


def split(text: str) -> list[str]:
    """Return the words and marks of a text."""
    text = f" {text} "
    for mark, spaced in MARKS:
        text = mark.sub(spaced, text)
    return text.split()


def n_grams(text: str) -> NGrams:
    """Count the n-grams of a text, n from 1 to 4."""
    words = split(text)
    return Counter(
        tuple(words[i : i + n]) for n in range(1, MAX_ORDER + 1) for i in range(len(words) - n + 1)
    )


def score(matches: Sequence[int], totals: Sequence[int], words: int, reference: int) -> float:
    """Return BLEU from the matching and all n-grams by order, and the words of both sides."""
    if not words or not matches[0]:
        return 0.0
    log_precision, smoothing = 0.0, 1.0
    for matching, total in zip(matches, totals, strict=True):
        if total == 0:
            return 0.0
        if matching == 0:
            smoothing *= 2
        precision = matching / total if matching else 1 / (smoothing * total)
        log_precision += math.log(precision) / MAX_ORDER
    brevity = min(0.0, 1 - reference / words)
    return 100 * math.exp(log_precision + brevity)
