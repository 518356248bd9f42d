"""SentencePiece vocabularies (Kudo & Richardson, 2018), which Firefox's models have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from npad.errors import InvalidInput, StorageError


@dataclass(frozen=True)
class Pieces:
    """A SentencePiece model; tokens are its ids."""

    processor: Any

    @classmethod
    def parse(cls, content: bytes, path: Path) -> Pieces:
        """Parse the content of a `.spm` file.

        Args:
            content: the unpacked bytes.
            path: the file, for error messages.

        Raises:
            InvalidInput: the library is not installed.
            StorageError: the content is no SentencePiece model, or has no end token.
        """
        try:
            from sentencepiece import SentencePieceProcessor
        except ImportError as error:
            needs = "models of Firefox need sentencepiece"
            raise InvalidInput(f'{needs}: pip install "npad[firefox]"') from error
        try:
            processor = SentencePieceProcessor(model_proto=content)
        except (RuntimeError, ValueError, TypeError) as error:
            raise StorageError(f"{path} is no sound SentencePiece model") from error
        if processor.get_piece_size() < 1 or processor.eos_id() != 0:
            raise StorageError(f"{path} is no vocabulary of Marian: its end token must be token 0")
        return cls(processor)

    def __len__(self) -> int:
        return int(self.processor.get_piece_size())

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the tokens of texts, without end tokens."""
        return [list(tokens) for tokens in self.processor.encode(list(texts))]

    def __call__(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens."""
        return str(self.processor.decode(list(tokens)))

    def all(self, sequences: Sequence[Sequence[int]]) -> list[str]:
        """Return the texts of many sequences of tokens."""
        return [str(text) for text in self.processor.decode([list(s) for s in sequences])]
