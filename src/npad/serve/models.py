"""The models that a server has, each with its thread."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import PurePath
from typing import Any

import torch

from npad.errors import InvalidInput
from npad.pipelines.loading import load
from npad.pipelines.names import CHAT, HUGGING_FACE, SHIPPED, TOY
from npad.pipelines.transcription import Transcriber
from npad.pipelines.translation import Translator
from npad.search.defaults import Defaults
from npad.serve.limits import Limits
from npad.serve.pieces import Pieces, source_subwords
from npad.serve.worker import Worker

LANGUAGES = {TOY: ("de", "en")}  # of models whose name does not say it
PAIR = re.compile(r"([a-z]{2,3})-([a-z]{2,3})")


@dataclass(eq=False)
class ServedModel:
    """A model with the thread that runs it.

    Attributes:
        id: its name in requests.
        worker: the thread.
        translator: None if the model hears.
        transcriber: None if the model reads.
    """

    id: str
    worker: Worker
    translator: Translator | None = None
    transcriber: Transcriber | None = None

    @property
    def model(self) -> Any:
        pipeline = self.translator or self.transcriber
        assert pipeline is not None
        return pipeline.model

    @property
    def text(self) -> Translator:
        """The translator of a model that reads."""
        if self.translator is None:
            raise InvalidInput(
                f"{self.id} hears and does not read; send a recording to /v1/audio/transcriptions"
            )
        return self.translator

    @property
    def sound(self) -> Transcriber:
        """The transcriber of a model that hears."""
        if self.transcriber is None:
            raise InvalidInput(
                f"{self.id} reads text and hears no sound; start the server with a Whisper model, "
                "as --model hf:openai/whisper-tiny.en"
            )
        return self.transcriber

    @cached_property
    def pieces(self) -> Pieces:
        return Pieces(self.text.detokenise)

    @cached_property
    def source_pieces(self) -> Pieces | None:
        subwords = source_subwords(self.text)
        return None if subwords is None else Pieces(subwords.decode)

    @property
    def encodes_anywhere(self) -> bool:
        """Whether sources may be encoded outside the model's thread; others' tokenizers may not."""
        return self.source_pieces is not None or self.text.encode is list

    @cached_property
    def defaults(self) -> Defaults:
        return Defaults.of(self.model)

    @property
    def languages(self) -> tuple[str, str] | None:
        """The codes of the languages it reads and writes; None if its name does not say."""
        pair = PAIR.fullmatch(self.id)
        return (pair[1], pair[2]) if pair else LANGUAGES.get(self.id)


def public_name(name: str) -> str:
    """Return a model's name in requests and answers: as given, without the path of a folder."""
    if name in (*SHIPPED, TOY):
        return name
    prefix = next((prefix for prefix in (HUGGING_FACE, CHAT) if name.startswith(prefix)), "")
    path = name.removeprefix(prefix)
    on_the_hub = bool(prefix) and path.count("/") == 1 and path[0] not in "./~"
    return name if on_the_hub else prefix + PurePath(path).name


def serve_translator(name: str, translator: Translator, limits: Limits) -> ServedModel:
    """Return a model that reads, with its thread started."""
    return ServedModel(name, Worker(name, limits.queue, limits.batch), translator)


def serve_transcriber(name: str, transcriber: Transcriber, limits: Limits) -> ServedModel:
    """Return a model that hears, with its thread started."""
    worker = Worker(name, limits.queue, limits.batch)
    return ServedModel(name, worker, transcriber=transcriber)


def load_served(name: str, device: torch.device, limits: Limits) -> ServedModel:
    """Load a model by name, a speech model as well, and start its thread.

    Raises:
        InvalidInput: there is no such model.
        StorageError: the model's files are damaged.
    """
    shown, pipeline = public_name(name), load(name, device)
    if isinstance(pipeline, Transcriber):
        return serve_transcriber(shown, pipeline, limits)
    if not isinstance(pipeline, Translator):
        raise InvalidInput(f"{shown} is a model of pictures, which no route of the server reads")
    return serve_translator(shown, pipeline, limits)
