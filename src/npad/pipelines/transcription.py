"""Transcription: recordings in, text with times out, with any decoder."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from torch import Tensor

from npad.errors import InvalidInput
from npad.hypotheses import Hypothesis
from npad.metrics.metric import Metric
from npad.metrics.wer import Wer
from npad.model import Model
from npad.pipelines.outputs import Output, Segment, Window
from npad.pipelines.pipeline import EncodedBatch, Piece, Pipeline, Run, also_named, moved_load
from npad.pipelines.sound import is_silent, split_at_pauses
from npad.search.request import Decoding
from npad.text.english import spoken
from npad.validation import as_list, ensure_integer, ensure_number

MIN_SECONDS = 1.0  # of sound after the last timestamp of a window that are transcribed again

Tokens = tuple[int, ...]


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


@dataclass(frozen=True)
class Transcriber(Pipeline):
    """A speech model with its audio front end and its vocabulary.

    A recording, a tensor [samples] at `rate` samples per second, is cut at pauses into windows that
    the model can read. Windows of several recordings are decoded together; silent ones are not
    decoded and their output is empty. If a model that writes timestamps ends a transcript before
    the sound ends, the rest becomes a window of its own.

    Args:
        model: the speech model.
        hear: makes the model's source from recordings, each [samples].
        detokenise: makes a text from the tokens of a hypothesis.
        rate: samples per second that `hear` expects.
        longest: seconds that the model reads at once; longer recordings are split.
        timestamps: the model's tokens for times; None if it does not write them.
        timed: the same model writing timestamps, if it can and this one does not.
        confidence: returns the word accuracy to expect of a best hypothesis, or None.

    Raises:
        InvalidInput: an argument is out of range.
    """

    model: Model[Any]
    hear: Callable[[Sequence[Tensor]], Any]
    detokenise: Callable[[Tokens], str]
    rate: int = 16000
    longest: float = 30.0
    timestamps: Timestamps | None = None
    timed: Transcriber | None = None
    confidence: Callable[[Hypothesis], float | None] | None = None

    medium: ClassVar[str] = "recording"
    encoder: ClassVar[str] = "hear"
    max_rows: ClassVar[int] = 256
    measure: ClassVar[Metric] = Wer()
    largest: ClassVar[int] = 16  # keys and values take 18 MB in Whisper tiny, 0.5 GB in large
    transcribe = also_named("recordings", Pipeline.decode)
    stream = also_named("recordings", Pipeline.stream)

    def __post_init__(self) -> None:
        super().__post_init__()
        ensure_integer("rate", self.rate, 1)
        ensure_number("longest", self.longest, above=0)

    def with_timestamps(self) -> Transcriber:
        """Return the transcriber that writes timestamps, if the model can; else this one."""
        return self if self.timed is None else replace(self.timed, confidence=self.confidence)

    def comparable(self, text: str) -> str:
        """Return the words of a text as word error rates compare them (`npad.text.english`)."""
        return spoken(text)

    def segments(self, window: Window) -> Iterator[Segment]:
        """Yield the segments of a window that have a text, within the window.

        Without timestamps, the window is one segment.
        """
        start, end, output = window
        if self.timestamps is None:
            if output.text:
                yield Segment(start, end, output.text, output)
            return
        for begin, until, tokens in self.timestamps.split(output.hypothesis.tokens):
            text = self.detokenise(tokens)
            if text:
                first = start if begin is None else min(start + begin, end)
                last = end if until is None else min(max(start + until, first), end)
                yield Segment(first, last, text, output)

    def _all(self, sources: Iterable[Any]) -> tuple[Iterable[Any], int | None]:
        recordings = as_list(
            "recordings", sources, "a list of recordings, each a tensor of samples"
        )
        for number, recording in enumerate(recordings, start=1):
            _ensure_samples(recording, number)
        return recordings, None

    def _window(self, decoding: Decoding) -> int:
        return 1

    def _read(self, source: Any, number: int) -> list[Piece]:
        _ensure_samples(source, number)
        pieces, rate, first = [], self.rate, 0
        for samples in split_at_pauses(source.detach().cpu().float(), rate, self.longest):
            end, seconds = first + len(samples), len(samples) / rate
            silent = is_silent(samples, rate)
            pieces.append(Piece(samples, 0, seconds, silent, first / rate, end / rate))
            first = end
        return pieces

    def _batches(
        self, waiting: list[Piece], decoding: Decoding, last: bool
    ) -> Iterator[list[Piece]]:
        """Take full batches, across recordings; the last one may be smaller."""
        size = max(1, min(self.largest, decoding.max_rows // decoding.decoder.rows))
        while len(waiting) >= size or (waiting and last):
            batch, waiting[:] = waiting[:size], waiting[size:]
            yield batch

    def _rests(self, batch: EncodedBatch, run: Run) -> list[Piece]:
        """Cut windows after their last timestamp if there is sound; return what follows.

        Whisper may end a transcript before all has been said.
        """
        if self.timestamps is None:
            return []
        run.decode(batch)
        return [rest for piece in batch.pieces for rest in self._rest(piece, self.timestamps)]

    def _rest(self, piece: Piece, timestamps: Timestamps) -> list[Piece]:
        assert isinstance(piece.outcome, Output)
        seconds = timestamps.last(piece.outcome.hypothesis.tokens)
        left = piece.end - piece.start - seconds
        if seconds < MIN_SECONDS or left < MIN_SECONDS:
            return []
        cut = int(seconds * self.rate)
        samples = piece.content[cut:]
        if is_silent(samples, self.rate):
            return []
        middle = piece.start + cut / self.rate
        piece.rest = Piece(samples, size=0, start=middle, end=piece.end, rest=piece.rest)
        piece.content, piece.end = piece.content[:cut], middle
        return [piece.rest]

    def _joined(self, pieces: list[Piece], signed: str) -> Output:
        windows = []
        for piece in pieces:
            assert isinstance(piece.outcome, Output)
            windows.append(Window(piece.start, piece.end, piece.outcome))
        outputs = [window.output for window in windows]
        segments = tuple(segment for window in windows for segment in self.segments(window))
        hypotheses = [output.hypothesis for output in outputs]
        hypothesis = hypotheses[0]
        if len(hypotheses) > 1:
            hypothesis = Hypothesis(
                sum((h.tokens for h in hypotheses), ()),
                sum(h.log_prob for h in hypotheses),
                finished=all(h.finished for h in hypotheses),
            )
        spoken_in = [output for output in outputs if output.confidence is not None]
        return Output(
            " ".join(segment.text for segment in segments),
            sum(output.log_prob for output in outputs),
            hypothesis,
            signed,
            outputs[0].alternatives if len(outputs) == 1 else (),
            _mean_confidence(spoken_in),
            spoken_in[0].signal if spoken_in else "",
            any(output.doubtful for output in outputs),
            tuple(windows),
            segments,
        )


def _mean_confidence(outputs: Sequence[Output]) -> float | None:
    """Return the mean confidence of windows, weighted by words; None of no windows."""
    weights = [1 + len(output.text.split()) for output in outputs]
    weighted = [w * (o.confidence or 0.0) for w, o in zip(weights, outputs, strict=True)]
    return sum(weighted) / sum(weights) if weights else None


def _ensure_samples(recording: object, number: int) -> None:
    """Refuse a recording that is not a tensor of at least one finite sample."""
    is_samples = (
        isinstance(recording, Tensor)
        and recording.dim() == 1
        and recording.is_floating_point()
        and len(recording) > 0
        and bool(recording.isfinite().all())
    )
    if not is_samples:
        raise InvalidInput(
            f"recording {number} must be a tensor of samples: at least one, real and finite"
        )


__getattr__ = moved_load(__name__)
