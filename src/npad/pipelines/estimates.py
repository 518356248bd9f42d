"""How good an output is expected to be: a pipeline's confidence, read from what a search found."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from npad.errors import InvalidInput
from npad.hypotheses import Hypothesis
from npad.pipelines.outputs import Output
from npad.search.decoder import Decoder
from npad.signals import SIGNALS, Alternative
from npad.storage.confidence import PLAIN, Confidence, SignalMap


@dataclass(frozen=True)
class Estimator:
    """Estimates the quality of a decoder's outputs.

    Attributes:
        confidence: of the pipeline: a `Confidence`, a function of the best hypothesis, or None.
        comparable: returns a text in the task's normal form.
        decoder: the decoder; None if there was no search.
        least: outputs of less confidence are doubtful; None if none is.

    Raises:
        InvalidInput: there is no confidence that could be too low.
    """

    confidence: Callable[[Hypothesis], float | None] | None
    comparable: Callable[[str], str]
    decoder: Decoder | None = None
    least: float | None = None

    def __post_init__(self) -> None:
        if self.least is not None and self.confidence is None:
            raise InvalidInput(
                "min_confidence needs a model with a confidence, and this one has none; fit it on "
                "validation data with npad fit-confidence"
            )

    @cached_property
    def listed(self) -> SignalMap | None:
        """The map of a signal that reads the decoder's candidates, if one was fitted to it."""
        fitted = self.confidence if isinstance(self.confidence, Confidence) else None
        if fitted is None or self.decoder is None:
            return None
        return fitted.for_decoder(self.decoder)

    @cached_property
    def signal(self) -> Any:
        """What reads the candidates; None if nothing does."""
        return None if self.listed is None else SIGNALS.parse(self.listed.signal)

    def output(self, hypotheses: Sequence[Hypothesis], texts: Sequence[str], signed: str) -> Output:
        """Return the hypotheses of one source as an output, with its confidence.

        Args:
            hypotheses: all that a search returned, best first.
            texts: theirs.
            signed: how they were found.
        """
        quality, signal = self._estimate(hypotheses, texts)
        doubtful = self.least is not None and quality is not None and quality < self.least
        return Output.of(hypotheses, texts, signed, quality, signal, doubtful)

    def _estimate(
        self, hypotheses: Sequence[Hypothesis], texts: Sequence[str]
    ) -> tuple[float | None, str]:
        """Return the quality to expect of the first hypothesis, and the signal that says so."""
        if self.listed is None:
            quality = None if self.confidence is None else self.confidence(hypotheses[0])
            return quality, "" if quality is None else PLAIN
        candidates = candidates_of(hypotheses, texts, self.comparable)
        return self.listed(self.signal(candidates[0], candidates)), self.listed.signal


def candidates_of(
    hypotheses: Sequence[Hypothesis], texts: Sequence[str], comparable: Callable[[str], str]
) -> list[Alternative]:
    """Return hypotheses as signals read them, without those cut if the first one is finished."""
    pairs = zip(hypotheses, texts, strict=False)
    return [
        Alternative(comparable(text), hypothesis)
        for hypothesis, text in pairs
        if hypothesis.finished or not hypotheses[0].finished
    ]
