"""Transcription: audio in, text out, with any decoder."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from npad.engine.devices import device_named
from npad.errors import InvalidInput
from npad.model import Model
from npad.pipelines.audio import is_silent, split_at_pauses
from npad.pipelines.content import ContentDecoder
from npad.pipelines.names import TRAINED, ModelReference
from npad.pipelines.own_models import load_own
from npad.pipelines.progress import report_decoded
from npad.pipelines.segments import Segment, Timestamps, Window, segments
from npad.pipelines.sound import log_mel
from npad.pipelines.translation import Translation
from npad.search.beam import Beam
from npad.search.decoder import Decoder
from npad.text.english import spoken
from npad.text.subwords import Detokeniser
from npad.validation import as_list, brief, ensure_callable, ensure_integer, ensure_number

MAX_WINDOWS = (
    16  # at a time: a window's keys and values take 18 MB in Whisper tiny, 0.5 GB in large
)
LONGEST = 30.0  # seconds of a window of a model that does not say what it was trained on
MIN_SECONDS = 1.0  # of sound after the last timestamp of a window that are transcribed again


@dataclass
class _Heard:
    """A window of a recording while it is transcribed."""

    samples: Tensor
    start: float  # seconds
    end: float
    transcript: Translation | None = None
    rest: _Heard | None = None  # what follows its last timestamp

    def parts(self) -> list[Window] | None:
        """Return the window and the rest of it; None if they are not done."""
        if self.transcript is None:
            return None
        windows = [Window(self.start, self.end, self.transcript)]
        if self.rest is None:
            return windows
        parts = self.rest.parts()
        return parts and windows + parts


@dataclass(frozen=True)
class Transcriber:
    """A speech model with its audio front end and its vocabulary.

    Args:
        model: the speech model.
        hear: makes the model's source from recordings, each [samples].
        detokenise: makes a text from the tokens of a hypothesis.
        rate: samples a second that `hear` expects.
        longest: seconds that the model reads at once; longer recordings are split.
        timestamps: the model's tokens for times; None if it does not write them.

    Raises:
        InvalidInput: an argument is out of range.
    """

    model: Model[Any]
    hear: Callable[[Sequence[Tensor]], Any]
    detokenise: Callable[[tuple[int, ...]], str]
    rate: int = 16000
    longest: float = 30.0
    timestamps: Timestamps | None = None

    def __post_init__(self) -> None:
        ensure_callable("hear", self.hear, "a function from recordings to the model's source")
        ensure_callable("detokenise", self.detokenise, "a function from tokens to text")
        ensure_integer("rate", self.rate, 1)
        ensure_number("longest", self.longest, above=0)

    def transcribe(
        self,
        recordings: Sequence[Tensor],
        decoder: Decoder | None = None,
        max_length: int = 200,
        max_rows: int = 256,
    ) -> list[list[Translation]]:
        """Transcribe recordings, window by window.

        The noise of a window depends on its samples alone.

        Args:
            recordings: each [samples], at `rate` samples a second.
            decoder: `Beam()` by default.
            max_length: tokens of a transcript, at most.
            max_rows: rows (windows × chains × beams) decoded at a time.

        Returns:
            The transcripts of each recording's windows, in order.

        Raises:
            InvalidInput: an argument is not valid, or a recording is not a tensor of samples.
        """
        recordings = as_list(
            "recordings", recordings, "a list of recordings, each a tensor of samples"
        )
        for i, recording in enumerate(recordings):
            _ensure_samples(recording, i + 1)
        return [
            [window.transcript for window in windows]
            for windows in self.stream(recordings, decoder, max_length, max_rows)
        ]

    def stream(
        self,
        recordings: Iterable[Tensor],
        decoder: Decoder | None = None,
        max_length: int = 200,
        max_rows: int = 256,
    ) -> Iterator[list[Window]]:
        """Yield the windows of each recording with their transcripts, as soon as it is done.

        Windows of several recordings are decoded together, and recordings are read one by one.
        Silent windows are not decoded; their transcript is empty. If a model that writes timestamps
        ends a transcript before the sound ends, the rest becomes a window of its own. MBR compares
        texts as word error rates do (`npad.text.english`). After each batch, the listeners of
        `npad.pipelines.progress.on_decoded` are told the whole seconds that were transcribed.
        The arguments are those of `transcribe`.
        """
        decode = ContentDecoder(
            self.model,
            self.hear,
            self.detokenise,
            compare=lambda tokens: spoken(self.detokenise(tokens)),
            decoder=Beam() if decoder is None else decoder,
            max_length=max_length,
            max_rows=max_rows,
            largest=MAX_WINDOWS,
        )
        waiting: deque[list[_Heard]] = deque()  # recordings that are not done
        batch: list[_Heard] = []
        for i, recording in enumerate(chain(recordings, [None])):
            if recording is not None:
                _ensure_samples(recording, i + 1)
                waiting.append(self._windows(recording))
            for window in waiting[-1] if recording is not None else ():
                if is_silent(window.samples, self.rate):
                    window.transcript = decode.blank
                else:
                    batch.append(window)
            while len(batch) >= decode.batch or (batch and recording is None):
                decoded, batch = batch[: decode.batch], batch[decode.batch :]
                transcripts = decode([window.samples for window in decoded])
                for window, transcript in zip(decoded, transcripts, strict=True):
                    window.transcript = transcript
                    batch += self._rest(window)
                report_decoded(round(sum(len(w.samples) for w in decoded) / self.rate))
            while waiting and all(parts := [window.parts() for window in waiting[0]]):
                waiting.popleft()
                yield [window for windows in parts for window in windows or ()]

    def _windows(self, recording: Tensor) -> list[_Heard]:
        windows, start = [], 0
        samples = recording.detach().cpu().float()
        for piece in split_at_pauses(samples, self.rate, self.longest):
            windows.append(_Heard(piece, start / self.rate, (start + len(piece)) / self.rate))
            start += len(piece)
        return windows

    def _rest(self, window: _Heard) -> list[_Heard]:
        """Cut a window after its last timestamp if there is sound; return what follows, if any.

        Whisper may end a transcript before all has been said.
        """
        assert window.transcript is not None
        if self.timestamps is None:
            return []
        seconds = self.timestamps.last(window.transcript.hypothesis.tokens)
        left = window.end - window.start - seconds
        if seconds < MIN_SECONDS or left < MIN_SECONDS:
            return []
        cut = int(seconds * self.rate)
        rest = window.samples[cut:]
        if is_silent(rest, self.rate):
            return []
        middle = window.start + cut / self.rate
        window.rest = _Heard(rest, middle, window.end)
        window.samples, window.end = window.samples[:cut], middle
        return [window.rest]

    def segments(self, windows: Iterable[Window]) -> list[Segment]:
        """Return the segments of a recording: by the model's timestamps, or its windows."""
        return [
            segment
            for window in windows
            for segment in segments(window, self.timestamps, self.detokenise)
        ]


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


def load(
    name: str | Path,
    device: str | torch.device = "cpu",
    language: str | None = None,
    timestamps: bool = False,
) -> Transcriber:
    """Load a speech model.

    Args:
        name: `hf:` and a folder or a name on the hub, of a Whisper model; or a folder that
            `npad train --task speech` wrote.
        device: where to load it.
        language: of a multilingual model; English by default.
        timestamps: let the model write them, if it can. Its words may differ a little then.

    Raises:
        InvalidInput: there is no such model, or it does not know the language.
    """
    if language is not None and not isinstance(language, str):
        raise InvalidInput(f"language must be a code, such as 'de', or None, not {brief(language)}")
    device, reference = device_named(device), ModelReference.parse(name)
    if reference.pretrained is None or reference.chat:
        if language is not None:
            raise InvalidInput(f"{name} has one language: leave out {language!r}")
        return _load_folder(
            reference.require_folder(
                "transcribe", f"hf:NAME_OR_PATH or {TRAINED} --task speech wrote"
            ),
            device,
        )
    from npad.models.huggingface.adapter import Inputs  # an extra
    from npad.models.huggingface.loading import speech_model

    model, processor, stamp = speech_model(reference.pretrained, device, language, timestamps)
    rate = processor.feature_extractor.sampling_rate

    def hear(recordings: Sequence[Tensor]) -> Inputs:
        features = processor(
            [recording.numpy() for recording in recordings],
            sampling_rate=rate,
            return_tensors="pt",
        )
        return Inputs(**features)

    def detokenise(tokens: tuple[int, ...]) -> str:
        return str(processor.tokenizer.decode(list(tokens), skip_special_tokens=True)).strip()

    longest = getattr(processor.feature_extractor, "chunk_length", 30.0)
    stamps = None if stamp is None else Timestamps(stamp)
    return Transcriber(model, hear, detokenise, rate, longest, stamps)


def _load_folder(folder: Path, device: torch.device) -> Transcriber:
    """Load a speech model that npad trained; a window is no longer than what it has heard."""
    own = load_own(folder, "sound", device)
    rate, bins = own.source_options["rate"], own.source_options["bins"]

    def hear(recordings: Sequence[Tensor]) -> list[Tensor]:
        return [log_mel(recording, rate, bins) for recording in recordings]

    longest = own.about.get("longest_seconds", LONGEST)
    return Transcriber(own.model, hear, Detokeniser(own.target), rate, longest)
