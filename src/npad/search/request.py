"""One decoding request: a decoder with its limits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from npad.model import Model
from npad.search.decoder import Decoder, ensure_decoder
from npad.search.selected import default_decoder
from npad.validation import ensure_integer

MAX_LENGTH = 200
MAX_ROWS = 1024


@dataclass(frozen=True)
class Decoding:
    """What to run on each input, and how much of it at a time.

    Attributes:
        decoder: the search.
        max_length: tokens that an output may have, its end token included.
        max_rows: rows (inputs × chains × beams) decoded at a time, fewer if inputs are long or
            memory is short; it decides memory and speed, not the result.
    """

    decoder: Decoder
    max_length: int = MAX_LENGTH
    max_rows: int = MAX_ROWS

    def __post_init__(self) -> None:
        ensure_decoder(self.decoder)
        ensure_integer("max_length", self.max_length, 1)
        ensure_integer("max_rows", self.max_rows, 1)

    @classmethod
    def on(
        cls,
        model: Model[Any],
        decoder: Decoder | None = None,
        max_length: int = MAX_LENGTH,
        max_rows: int = MAX_ROWS,
    ) -> Decoding:
        """Return a request for a model, with the model's default decoder if none is given."""
        return cls(default_decoder(model) if decoder is None else decoder, max_length, max_rows)
