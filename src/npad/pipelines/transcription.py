"""Sound in, text out: a model that listens, with any of the decoders."""

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
from npad.pipelines.audio import pieces
from npad.pipelines.translation import Translation
from npad.search.beam import Beam
from npad.search.decoder import Decoder, ensure_decoder
from npad.search.hypotheses import Hypothesis
from npad.signatures import signature
from npad.validation import as_list, brief, ensure_callable, ensure_integer, ensure_number


@dataclass(frozen=True)
class Transcriber:
    """A speech model: `hear` makes its source of recordings, `detokenise` text of a hypothesis' symbols.

    rate: samples a second. longest: seconds that it hears at once.
    """

    model: Model[Any]
    hear: Callable[[Sequence[Tensor]], Any]
    detokenise: Callable[[tuple[int, ...]], str]
    rate: int = 16000
    longest: float = 30.0

    def __post_init__(self) -> None:
        ensure_callable("hear", self.hear, "a function from recordings to the model's source")
        ensure_callable("detokenise", self.detokenise, "a function from symbols to text")
        ensure_integer("rate", self.rate, 1)
        ensure_number("longest", self.longest, above=0)

    def transcribe(
        self,
        recordings: Sequence[Tensor],
        decoder: Decoder | None = None,
        max_length: int = 200,
        max_rows: int = 256,
    ) -> list[list[Translation]]:
        """Each recording [samples] as the transcripts of its pieces, in order; a short one is one piece.

        A piece's noise depends on its sound alone. max_rows: rows (pieces × chains × beams) decoded at a time.
        """
        decoder = Beam() if decoder is None else decoder
        ensure_decoder(decoder)
        ensure_integer("max_length", max_length, 1)
        ensure_integer("max_rows", max_rows, 1)
        recordings = as_list(
            "recordings", recordings, "a list of recordings, each a tensor of samples"
        )
        for i, sound in enumerate(recordings):
            fine = (
                isinstance(sound, Tensor)
                and sound.dim() == 1
                and sound.is_floating_point()
                and len(sound)
            )
            if not fine or not bool(sound.isfinite().all()):
                raise InvalidInput(
                    f"recording {i + 1} must be a tensor of samples: at least one, real and finite"
                )
        cut = [
            pieces(sound.detach().cpu().float(), self.rate, self.longest) for sound in recordings
        ]
        flat: list[Tensor] = [piece for each in cut for piece in each]
        down, room, found = max(1, max_rows // decoder.rows), RowBudget(max_rows), []

        def decoded(some: Sequence[Tensor]) -> list[list[Hypothesis]]:
            ids = [stable_hash(sound.numpy().tobytes()) for sound in some]
            source = self.hear(some)
            if ensure_length(source, "what hear returns") != len(some):
                raise InvalidInput(
                    f"hear must return one entry a recording: it made {len(source)} of {len(some)}"
                )
            return decode(self.model, source, decoder, max_length, ids, max_rows)

        for top in range(0, len(flat), down):
            found += room.run(decoded, flat[top : top + down], decoder.rows)
        how = signature(decoder, self.model)
        texts = (self._text(one) for hypotheses in found for one in hypotheses)
        written = iter([Translation.of(hypotheses, texts, how) for hypotheses in found])
        return [[next(written) for _ in each] for each in cut]

    def _text(self, hypothesis: Hypothesis) -> str:
        text: object = self.detokenise(hypothesis.tokens)
        if not isinstance(text, str):
            raise InvalidInput(f"detokenise must return a text, not {brief(text)}")
        return text


def load(name: str, device: str | torch.device = "cpu", language: str | None = None) -> Transcriber:
    """`hf:NAME_OR_PATH`: a Whisper, or one of its kind. language: of one that knows several; en unless given."""
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
        heard = processor(
            [sound.numpy() for sound in recordings], sampling_rate=rate, return_tensors="pt"
        )
        return Inputs(**heard)

    def detokenise(tokens: tuple[int, ...]) -> str:
        return str(processor.tokenizer.decode(list(tokens), skip_special_tokens=True)).strip()

    return Transcriber(
        model, hear, detokenise, rate, getattr(processor.feature_extractor, "chunk_length", 30.0)
    )
