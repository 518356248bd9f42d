"""The models that a server has, each with its thread."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import PurePath
from typing import Any

from npad.errors import InvalidInput
from npad.pipelines.names import CHAT, HUGGING_FACE, SHIPPED, TOY
from npad.pipelines.outputs import Output
from npad.pipelines.pipeline import Pipeline
from npad.pipelines.transcription import Transcriber
from npad.pipelines.translation import Translator
from npad.serve.limits import Limits
from npad.serve.model_thread import ModelThread
from npad.text.subwords import Subwords

CONFIDENCE_DIGITS = 2
SPACE = "▁"  # stands for the space before a word
END_PIECE = "</s>"
START_SPEECH = "start the server with a speech model, as --model hf:openai/whisper-tiny.en"
ANCHORS = 5000  # tokens among which one that can precede any other is looked for


@dataclass(eq=False)
class ServedModel:
    """A model with the thread that runs it.

    Attributes:
        id: its name in requests.
        thread: runs its requests.
        pipeline: reads texts or recordings.
    """

    id: str
    thread: ModelThread
    pipeline: Pipeline

    @property
    def model(self) -> Any:
        return self.pipeline.model

    @property
    def hears(self) -> bool:
        """Whether it is a speech model."""
        return isinstance(self.pipeline, Transcriber)

    @property
    def text(self) -> Translator:
        """The pipeline of a text model."""
        if isinstance(self.pipeline, Translator):
            return self.pipeline
        rule = "is a speech model; send a recording to /v1/audio/transcriptions"
        raise InvalidInput(f"{self.id} {rule}")

    @property
    def sound(self) -> Transcriber:
        """The pipeline of a speech model."""
        if isinstance(self.pipeline, Transcriber):
            return self.pipeline
        raise InvalidInput(f"{self.id} is a text model; {START_SPEECH}")

    @cached_property
    def pieces(self) -> Pieces:
        return Pieces(self.text.detokenise)

    @cached_property
    def _source_pieces(self) -> Pieces | None:
        """Those of the vocabulary that encodes the sources, if npad trained the model."""
        subwords = getattr(self.text.encode, "__self__", None)
        return Pieces(subwords.decode) if isinstance(subwords, Subwords) else None

    def source_pieces(self, text: str, source: Any) -> list[str]:
        """Return the pieces of a source, its end token included; its words if tokens are unknown.

        Args:
            text: the source as text.
            source: what `encode` returned for the text.
        """
        if self._source_pieces is None:
            return [f"{SPACE}{word}" for word in text.split()]
        return [*self._source_pieces(source), END_PIECE]

    @property
    def encodes_anywhere(self) -> bool:
        """Whether sources may be encoded outside the model's thread; others' tokenizers may not."""
        return self._source_pieces is not None or self.text.encode is list

    @property
    def languages(self) -> tuple[str, str] | None:
        """The codes of the languages it reads and writes; None if they are not known."""
        return self.pipeline.languages if isinstance(self.pipeline, Translator) else None


def trust_in(output: Output) -> dict[str, Any]:
    """Return how far an output can be trusted, and by what, as responses have it."""
    confidence = output.confidence
    return {
        "confidence": None if confidence is None else round(confidence, CONFIDENCE_DIGITS),
        "signal": output.signal or None,
        "doubtful": output.doubtful,
    }


class Pieces:
    """Tokens as pieces of text, for display.

    A detokeniser may strip the space at the start of a text, so that a token is decoded after
    another one, the anchor.

    Args:
        detokenise: maps tokens to text.
    """

    def __init__(self, detokenise: Callable[[tuple[int, ...]], str]) -> None:
        self.detokenise = detokenise
        self.anchor = self._find_anchor()
        self.known: dict[int, str] = {}

    def __call__(self, tokens: Sequence[int]) -> list[str]:
        """Return the piece of each token."""
        for token in tokens:
            if token not in self.known:
                self.known[token] = self._read(token).replace(" ", SPACE)
        return [self.known[token] for token in tokens]

    def _read(self, token: int) -> str:
        if self.anchor is not None:
            start, text = self.detokenise((self.anchor,)), self.detokenise((self.anchor, token))
            if text.startswith(start):
                return text[len(start) :]
        return self.detokenise((token,))

    def _find_anchor(self) -> int | None:
        """Return the first token that is a plain word or letter."""
        for token in range(1, ANCHORS):
            try:
                text = self.detokenise((token,))
            except Exception:  # the vocabulary ends here
                return None
            if text.isascii() and text.isalpha():
                return token
        return None


def public_name(name: str) -> str:
    """Return a model's name in requests and answers: as given, without the path of a folder."""
    if name in (*SHIPPED, TOY):
        return name
    prefix = next((prefix for prefix in (HUGGING_FACE, CHAT) if name.startswith(prefix)), "")
    path = name.removeprefix(prefix)
    on_the_hub = bool(prefix) and path.count("/") == 1 and path[0] not in "./~"
    return name if on_the_hub else prefix + PurePath(path).name


def serve(name: str, pipeline: Pipeline, limits: Limits) -> ServedModel:
    """Return a model by its name in requests, with its thread started.

    Raises:
        InvalidInput: it reads neither texts nor recordings.
    """
    if not isinstance(pipeline, Translator | Transcriber):
        raise InvalidInput(
            f"{name} reads {pipeline.medium}s, for which the server has no route; it serves "
            "models of texts and of speech"
        )
    return ServedModel(name, ModelThread(name, limits.queue, limits.batch), pipeline)
