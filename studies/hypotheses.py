"""Hypotheses in a record, so that they are selected and measured elsewhere, and later.

Only torch and NumPy are needed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from npad.hypotheses import Hypothesis
from npad.reproduce.record import Key
from npad.selectors import MBR, LengthNormalised, MostProbable, Selector
from npad.text.english import spoken
from npad.validation import brief

Detokenise = Callable[[tuple[int, ...]], str]


class Candidate(NamedTuple):
    """A distinct hypothesis for one source."""

    text: str
    log_prob: float
    length: int  # tokens, the end token included
    copies: int  # how often it was found
    finished: bool
    chain: int = 0  # that found it first


def candidates(hypotheses: Sequence[Hypothesis], text: Detokenise) -> list[Candidate]:
    """Return the distinct hypotheses for one source, in their order."""
    counts: dict[tuple[tuple[int, ...], bool], int] = {}
    first: dict[tuple[tuple[int, ...], bool], Hypothesis] = {}
    for hypothesis in hypotheses:
        key = hypothesis.tokens, hypothesis.finished
        counts[key] = counts.get(key, 0) + hypothesis.count
        first.setdefault(key, hypothesis)
    return [
        Candidate(
            text(h.tokens),
            round(h.log_prob, 4),
            len(h.tokens) + h.finished,
            counts[key],
            h.finished,
            h.chain,
        )
        for key, h in first.items()
    ]


def choose(ranked: Sequence[Candidate], selector: Selector) -> int:
    """Return place of the best candidate; finished ones rank before those that were cut.

    Word errors between candidates are those of normalised English.
    """
    if isinstance(selector, MBR):
        plain = spoken if selector.utility == "wer" else str
        texts = [plain(candidate.text) for candidate in ranked]
        copies = [candidate.copies for candidate in ranked]
        scores = [round(value, 9) for value in selector.expected_utilities(texts, texts, copies)]
    elif isinstance(selector, LengthNormalised):
        scores = [selector.score(c.log_prob, max(1, c.length)) for c in ranked]
    elif isinstance(selector, MostProbable):
        scores = [candidate.log_prob for candidate in ranked]
    else:
        raise TypeError(f"candidates in a file are not selected by {brief(selector)}")
    order = [(c.finished, score) for c, score in zip(ranked, scores, strict=True)]
    return order.index(max(order))


class OutOfTime(Exception):
    """The time is over; what is done is stored."""


class Deadline:
    """What a `Record` asks before it measures: nothing begins after so many minutes."""

    def __init__(self, minutes: float) -> None:
        self.end = time.monotonic() + 60 * minutes

    def over(self) -> bool:
        return time.monotonic() > self.end

    def __call__(self, key: Key) -> None:
        """Raise OutOfTime if the time is over."""
        if self.over():
            raise OutOfTime
