"""Segments of a recording: what was said, from when to when."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from npad.pipelines.translation import Translation

Tokens = tuple[int, ...]


class Window(NamedTuple):
    """A part of a recording that was transcribed at once, in seconds, and its transcript."""

    start: float
    end: float
    transcript: Translation


class Segment(NamedTuple):
    """What was said from `start` to `end`, in seconds."""

    start: float
    end: float
    text: str
    transcript: Translation  # of the window it is in


@dataclass(frozen=True)
class Timestamps:
    """Tokens that stand for times since the beginning of a window.

    Attributes:
        first: the token of 0 seconds; all tokens from it on are timestamps.
        seconds: between two of them.
    """

    first: int
    seconds: float = 0.02

    def last(self, tokens: Tokens) -> float:
        """Return the last time, 0 if there is none; infinity if words follow it."""
        if not tokens:
            return 0.0
        return (tokens[-1] - self.first) * self.seconds if tokens[-1] >= self.first else math.inf

    def split(self, tokens: Tokens) -> Iterator[tuple[float | None, float | None, Tokens]]:
        """Yield the segments of a transcript: begin, end, and the tokens between them.

        A time is None where a timestamp is missing.
        """
        start: float | None = None
        words: list[int] = []
        for token in tokens:
            if token < self.first:
                words.append(token)
                continue
            time = (token - self.first) * self.seconds
            if words:
                yield start, time, tuple(words)
                words = []
            start = time
        if words:
            yield start, None, tuple(words)


def segments(
    window: Window, timestamps: Timestamps | None, detokenise: Callable[[Tokens], str]
) -> Iterator[Segment]:
    """Yield the segments of a window that have a text, within the window.

    Without timestamps, the window is one segment.
    """
    start, end, transcript = window
    if timestamps is None:
        if transcript.text:
            yield Segment(start, end, transcript.text, transcript)
        return
    for begin, until, tokens in timestamps.split(transcript.hypothesis.tokens):
        text = detokenise(tokens)
        if text:
            first = start if begin is None else min(start + begin, end)
            last = end if until is None else min(max(start + until, first), end)
            yield Segment(first, last, text, transcript)
