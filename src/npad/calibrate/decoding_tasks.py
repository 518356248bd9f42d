"""What a search over decoders decodes: texts by a translator, recordings by a transcriber."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from npad.engine.cost import count_calls
from npad.errors import InvalidInput
from npad.pipelines.sound import read
from npad.pipelines.transcription import Transcriber
from npad.pipelines.translation import Translator
from npad.search.decoder import Decoder
from npad.validation import brief


@dataclass(frozen=True)
class Outputs:
    """A decoder's outputs on some sources, and what they cost."""

    texts: list[str]
    log_probs: list[float]
    calls: int  # of the model, re-scoring included
    seconds: float


class Task(Protocol):
    """A model that decodes sources."""

    @property
    def model(self) -> Any:
        """The model, whose capabilities decide which decoders there are."""

    def check(self, sources: Sequence[str]) -> None:
        """Raise InvalidInput for a source that cannot be decoded."""

    def decode(self, sources: Sequence[str], decoder: Decoder) -> Outputs:
        """Decode sources, in one call."""


@dataclass(frozen=True)
class Translating:
    """Texts, by a translator."""

    translator: Translator
    max_length: int = 200
    max_rows: int = 1024

    def __post_init__(self) -> None:
        if not isinstance(self.translator, Translator):
            raise InvalidInput(
                "translator must be a Translator, such as npad.load('en-de'), "
                f"not {brief(self.translator)}"
            )

    @property
    def model(self) -> Any:
        return self.translator.model

    def check(self, sources: Sequence[str]) -> None:
        for i, size in self.translator.too_long(sources).items():
            raise InvalidInput(
                f"sentence {i + 1} has {size}; at most {self.translator.longest:,} tokens are "
                "allowed: leave it out"
            )

    def decode(self, sources: Sequence[str], decoder: Decoder) -> Outputs:
        start = time.perf_counter()
        with count_calls() as calls:
            found = self.translator.translate(sources, decoder, self.max_length, self.max_rows)
        return Outputs(
            [output.text for output in found],
            [output.log_prob for output in found],
            calls.search + calls.rescoring,
            time.perf_counter() - start,
        )


@dataclass(frozen=True)
class Transcribing:
    """Recordings, as paths of WAV files, by a transcriber."""

    transcriber: Transcriber
    max_length: int = 200
    max_rows: int = 256

    @property
    def model(self) -> Any:
        return self.transcriber.model

    def check(self, sources: Sequence[str]) -> None:
        for path in sources:
            read(path, self.transcriber.rate)

    def decode(self, sources: Sequence[str], decoder: Decoder) -> Outputs:
        recordings = [read(path, self.transcriber.rate) for path in sources]
        start = time.perf_counter()
        with count_calls() as calls:
            found = list(
                self.transcriber.stream(recordings, decoder, self.max_length, self.max_rows)
            )
        seconds = time.perf_counter() - start
        texts = [output.text for output in found]
        log_probs = [output.log_prob for output in found]
        return Outputs(texts, log_probs, calls.search + calls.rescoring, seconds)
