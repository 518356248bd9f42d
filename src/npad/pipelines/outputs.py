"""What a pipeline returns: a text with its score, the windows of a recording, or a refusal."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from npad.errors import InvalidInput
from npad.hypotheses import Hypothesis


@dataclass(frozen=True)
class Output:
    """What a model wrote for one text, recording or picture.

    Attributes:
        text: the best hypothesis as text; of a recording, its segments joined by spaces.
        log_prob: the clean log-probability, end tokens of finished hypotheses included.
        hypothesis: the best hypothesis; of a recording of several windows, theirs in a row.
        signature: how it was decoded, as `npad.signature` writes it.
        alternatives: the decoder's other hypotheses, best first, without alternatives. A recording
            of several windows has none of its own; its windows have them.
        confidence: quality to expect, 0 to 100, such as sentence chrF; None without a fitted
            confidence and as alternative. Of several windows, their mean, weighted by words.
        signal: what the confidence is estimated by, such as "log-prob-per-token"; "" without one.
        doubtful: whether the confidence is below the request's `min_confidence`; of a recording,
            that of any window.
        windows: the parts of a recording that were decoded one by one; empty for other sources.
        segments: what was said in a recording, with times; empty for other sources.
    """

    text: str
    log_prob: float
    hypothesis: Hypothesis
    signature: str
    alternatives: tuple[Output, ...] = ()
    confidence: float | None = None
    signal: str = ""
    doubtful: bool = False
    windows: tuple[Window, ...] = ()
    segments: tuple[Segment, ...] = ()

    @classmethod
    def of(
        cls,
        hypotheses: Sequence[Hypothesis],
        texts: Sequence[str],
        signature: str,
        confidence: float | None = None,
        signal: str = "",
        doubtful: bool = False,
    ) -> Output:
        """Return the first hypothesis as an output, with the others as its alternatives.

        Args:
            hypotheses: one source's hypotheses, best first.
            texts: theirs.
            signature: how they were decoded.
            confidence: that of the first one.
            signal: what it is estimated by.
            doubtful: whether it is too low for the request.
        """
        best, *alternatives = [
            cls(text, hypothesis.log_prob, hypothesis, signature)
            for hypothesis, text in zip(hypotheses, texts, strict=True)
        ]
        return replace(
            best,
            alternatives=tuple(alternatives),
            confidence=confidence,
            signal=signal,
            doubtful=doubtful,
        )

    @classmethod
    def empty(cls, signature: str, refused: bool = False) -> Output:
        """Return the output of a source that is not decoded, since it is blank or silent.

        Args:
            signature: how it would have been decoded.
            refused: it cannot be decoded; its log-probability is −inf, which tells it from a blank.
        """
        hypothesis = Hypothesis((), 0.0, finished=True)
        return cls("", -math.inf if refused else 0.0, hypothesis, signature)


Translation = Output


class Window(NamedTuple):
    """A part of a recording that was decoded at once, in seconds, and its output."""

    start: float
    end: float
    output: Output


class Segment(NamedTuple):
    """What was said from `start` to `end`, in seconds."""

    start: float
    end: float
    text: str
    output: Output  # of the window it is in


class TooLong(InvalidInput):
    """A source that is not decoded: it exceeds the pipeline's limit.

    Args:
        size: its size, such as "1,204 tokens".
        longest: tokens that are allowed.
        subject: what the message calls it.
    """

    def __init__(self, size: str, longest: int, subject: str = "it") -> None:
        super().__init__(f"{subject} has {size} and {longest:,} tokens are allowed; split it")
        self.size, self.longest = size, longest

    def about(self, subject: str) -> TooLong:
        """Return the same error with another subject, such as "line 3"."""
        return TooLong(self.size, self.longest, subject)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TooLong) and str(self) == str(other)

    def __hash__(self) -> int:
        return hash(str(self))

    def __reduce__(self) -> tuple[type[TooLong], tuple[str, int]]:
        return TooLong, (self.size, self.longest)
