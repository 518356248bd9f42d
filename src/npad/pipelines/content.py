"""Decode pictures or recordings in batches; the noise of each depends on its content alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torch import Tensor

from npad.decoding import decode
from npad.engine.memory import RowBudget
from npad.errors import InvalidInput
from npad.model import Model, ensure_length
from npad.noise.random import stable_hash
from npad.pipelines.translation import Translation
from npad.search.decoder import Decoder, ensure_decoder
from npad.search.hypotheses import Hypothesis
from npad.signatures import signature
from npad.validation import brief, ensure_integer


@dataclass(frozen=True)
class ContentDecoder:
    """A search over tensors that a model can read.

    Args:
        model: the model.
        encode: makes the model's source from tensors, one entry each.
        detokenise: makes a text from the tokens of a hypothesis.
        compare: makes the text that MBR compares.
        decoder: the decoder.
        max_length: tokens of an output, at most.
        max_rows: rows (inputs × chains × beams) decoded at a time.
        largest: inputs decoded at a time, at most.

    Raises:
        InvalidInput: an argument is out of range.
    """

    model: Model[Any]
    encode: Callable[[Sequence[Tensor]], Any]
    detokenise: Callable[[tuple[int, ...]], str]
    compare: Callable[[tuple[int, ...]], str]
    decoder: Decoder
    max_length: int
    max_rows: int
    largest: int

    def __post_init__(self) -> None:
        ensure_decoder(self.decoder)
        ensure_integer("max_length", self.max_length, 1)
        ensure_integer("max_rows", self.max_rows, 1)

    @cached_property
    def search(self) -> Decoder:
        """The decoder with the functions from tokens to text."""
        return self.decoder.with_texts(self.compare, self.detokenise)

    @cached_property
    def batch(self) -> int:
        """Inputs of a batch."""
        return max(1, min(self.largest, self.max_rows // self.decoder.rows))

    @cached_property
    def signature(self) -> str:
        """How the outputs were decoded."""
        return signature(self.decoder, self.model)

    @cached_property
    def budget(self) -> RowBudget:
        """Halves the rows where memory is short."""
        return RowBudget(self.max_rows)

    @property
    def blank(self) -> Translation:
        """The output of an input that is not decoded."""
        return Translation("", 0.0, Hypothesis((), 0.0, finished=True), self.signature)

    def __call__(self, inputs: Sequence[Tensor]) -> list[Translation]:
        """Decode a batch."""
        decoded = self.budget.run(self._decode, inputs, self.decoder.rows)
        return [
            Translation.of(hypotheses, map(self._text, hypotheses), self.signature)
            for hypotheses in decoded
        ]

    def _decode(self, inputs: Sequence[Tensor]) -> list[list[Hypothesis]]:
        ids = [stable_hash(tensor.numpy().tobytes()) for tensor in inputs]
        source = self.encode(inputs)
        name = getattr(self.encode, "__name__", "encode")
        if ensure_length(source, f"what {name} returns") != len(inputs):
            raise InvalidInput(
                f"{name} must return one entry an input: "
                f"it returned {len(source)} for {len(inputs)}"
            )
        return decode(self.model, source, self.search, self.max_length, ids, self.max_rows)

    def _text(self, hypothesis: Hypothesis) -> str:
        text: object = self.detokenise(hypothesis.tokens)
        if not isinstance(text, str):
            raise InvalidInput(f"detokenise must return a text, not {brief(text)}")
        return text
