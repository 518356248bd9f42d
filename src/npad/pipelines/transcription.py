"""Transcription: audio in, text out, with any decoder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from npad.decoding import decode
from npad.engine.devices import device_named
from npad.engine.memory import RowBudget
from npad.errors import InvalidInput
from npad.model import Model, ensure_length
from npad.noise.random import stable_hash
from npad.pipelines.audio import split_at_pauses
from npad.pipelines.translation import Translation
from npad.search.beam import Beam
from npad.search.decoder import Decoder, ensure_decoder
from npad.search.hypotheses import Hypothesis
from npad.signatures import signature
from npad.validation import as_list, brief, ensure_callable, ensure_integer, ensure_number


@dataclass(frozen=True)
class Transcriber:
    """A speech model with its audio front end and its vocabulary.

    Args:
        model: the speech model.
        hear: makes the model's source from recordings, each [samples].
        detokenise: makes a text from the tokens of a hypothesis.
        rate: samples a second that `hear` expects.
        longest: seconds that the model reads at once; longer recordings are split.

    Raises:
        InvalidInput: an argument is out of range.
    """

    model: Model[Any]
    hear: Callable[[Sequence[Tensor]], Any]
    detokenise: Callable[[tuple[int, ...]], str]
    rate: int = 16000
    longest: float = 30.0

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
        """Transcribe recordings, piece by piece.

        The noise of a piece depends on its samples alone.

        Args:
            recordings: each [samples], at `rate` samples a second.
            decoder: `Beam()` by default.
            max_length: tokens of a transcript, at most.
            max_rows: rows (pieces × chains × beams) decoded at a time.

        Returns:
            The transcripts of each recording's pieces, in order.

        Raises:
            InvalidInput: an argument is not valid, or a recording is not a tensor of samples.
        """
        decoder = Beam() if decoder is None else decoder
        ensure_decoder(decoder)
        ensure_integer("max_length", max_length, 1)
        ensure_integer("max_rows", max_rows, 1)
        recordings = as_list(
            "recordings", recordings, "a list of recordings, each a tensor of samples"
        )
        for i, recording in enumerate(recordings):
            _ensure_samples(recording, i + 1)
        pieces = [
            split_at_pauses(recording.detach().cpu().float(), self.rate, self.longest)
            for recording in recordings
        ]
        flat: list[Tensor] = [piece for recording in pieces for piece in recording]
        budget, batch_size = RowBudget(max_rows), max(1, max_rows // decoder.rows)

        def decode_batch(batch: Sequence[Tensor]) -> list[list[Hypothesis]]:
            ids = [stable_hash(piece.numpy().tobytes()) for piece in batch]
            source = self.hear(batch)
            if ensure_length(source, "what hear returns") != len(batch):
                raise InvalidInput(
                    "hear must return one entry a recording: "
                    f"it returned {len(source)} for {len(batch)}"
                )
            return decode(self.model, source, decoder, max_length, ids, max_rows)

        results: list[list[Hypothesis]] = []
        for start in range(0, len(flat), batch_size):
            results += budget.run(decode_batch, flat[start : start + batch_size], decoder.rows)
        origin = signature(decoder, self.model)
        texts = (self._text(hypothesis) for hypotheses in results for hypothesis in hypotheses)
        transcripts = iter([Translation.of(hypotheses, texts, origin) for hypotheses in results])
        return [[next(transcripts) for _ in recording] for recording in pieces]

    def _text(self, hypothesis: Hypothesis) -> str:
        text: object = self.detokenise(hypothesis.tokens)
        if not isinstance(text, str):
            raise InvalidInput(f"detokenise must return a text, not {brief(text)}")
        return text


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


def load(name: str, device: str | torch.device = "cpu", language: str | None = None) -> Transcriber:
    """Load a speech model.

    Args:
        name: `hf:` and a folder or a name on the hub, of a Whisper model.
        device: where to load it.
        language: of a multilingual model; English by default.

    Raises:
        InvalidInput: there is no such model, or it does not know the language.
    """
    if not isinstance(name, str) or not name.startswith("hf:"):
        rule = "speech models are those of Hugging Face, such as hf:openai/whisper-tiny.en"
        raise InvalidInput(f"{rule}, not {brief(name)}")
    if language is not None and not isinstance(language, str):
        raise InvalidInput(f"language must be a code, such as 'de', or None, not {brief(language)}")
    device = device_named(device)
    from npad.models.huggingface.adapter import Inputs  # an extra
    from npad.models.huggingface.loading import speech_model

    model, processor = speech_model(name.removeprefix("hf:"), device, language)
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
    return Transcriber(model, hear, detokenise, rate, longest)
