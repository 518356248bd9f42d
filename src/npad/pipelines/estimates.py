"""How good an output is expected to be: a pipeline's confidence, read from what a search found."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from npad.errors import InvalidInput
from npad.hypotheses import Hypothesis
from npad.search.decoder import Decoder
from npad.signals import SIGNALS, Candidate
from npad.storage.confidence import PLAIN, Confidence, SignalMap


class Estimate(NamedTuple):
    """The quality to expect of an output, 0 to 100, and the signal that it is estimated by."""

    quality: float
    signal: str


@dataclass(frozen=True)
class Estimator:
    """Estimates the quality of a decoder's outputs.

    Attributes:
        confidence: of the pipeline: a `Confidence`, a function of the best hypothesis, or None.
        decoder: the decoder.
        comparable: returns a text in the task's normal form.
    """

    confidence: Callable[[Hypothesis], float | None] | None
    decoder: Decoder
    comparable: Callable[[str], str]

    @cached_property
    def listed(self) -> SignalMap | None:
        """The map of a signal that reads the decoder's candidates, if one was fitted to it."""
        fitted = self.confidence if isinstance(self.confidence, Confidence) else None
        return None if fitted is None else fitted.for_decoder(self.decoder)

    @cached_property
    def signal(self) -> Any:
        return None if self.listed is None else SIGNALS.parse(self.listed.signal)

    def __call__(self, hypotheses: Sequence[Hypothesis], texts: Sequence[str]) -> Estimate | None:
        """Return what to expect of the first hypothesis; None without a confidence.

        Args:
            hypotheses: all that the search returned, best first.
            texts: theirs.
        """
        if self.listed is None:
            quality = None if self.confidence is None else self.confidence(hypotheses[0])
            return None if quality is None else Estimate(quality, PLAIN)
        candidates = candidates_of(hypotheses, texts, self.comparable)
        return Estimate(self.listed(self.signal(candidates[0], candidates)), self.listed.signal)

    def ensure_confident(self) -> None:
        """Raise InvalidInput if there is no confidence to act on."""
        if self.confidence is None:
            raise InvalidInput(
                "min_confidence needs a model with a confidence, and this one has none; fit it on "
                "validation data with npad fit-confidence"
            )


def candidates_of(
    hypotheses: Sequence[Hypothesis], texts: Sequence[str], comparable: Callable[[str], str]
) -> list[Candidate]:
    """Return hypotheses as signals read them, without those cut if the first one is finished."""
    pairs = zip(hypotheses, texts, strict=False)
    return [
        Candidate(comparable(text), hypothesis)
        for hypothesis, text in pairs
        if hypothesis.finished or not hypotheses[0].finished
    ]
