"""What each token of a model writes, in bytes: what constraints on text are compiled with."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from npad.errors import InvalidInput
from npad.rows import IntArray
from npad.validation import brief

SPACE = b" "
MAX_HEALED = 8  # tokens at the end of a prefix that the model may write in other tokens


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """The tokens of a model's outputs.

    Attributes:
        pieces: the bytes that each token writes; none for special tokens. Those of an output, in a
            row, are its text, after a space if `leading`.
        encode: returns the tokens of texts that outputs begin with.
        leading: whether outputs begin with a space that is not part of the text.
    """

    pieces: Sequence[bytes]
    encode: Callable[[Sequence[str]], list[list[int]]]
    leading: bool = True

    def __len__(self) -> int:
        return len(self.pieces)

    def spelled(self, text: str) -> bytes:
        """Return the bytes of a text at the beginning of an output."""
        return SPACE * self.leading + text.encode()

    def tokens(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the tokens of texts that outputs begin with.

        Raises:
            InvalidInput: a token writes nothing, such as that of unknown letters.
        """
        found = self.encode(texts)
        for text, tokens in zip(texts, found, strict=True):
            if not all(map(self.pieces.__getitem__, tokens)):
                raise InvalidInput(f"the model has no tokens for some letters of {brief(text)}")
        return found

    def within(self, phrases: Sequence[str]) -> list[list[int]]:
        """Return the tokens of phrases after other words."""
        return self.tokens([phrase if self.leading else f" {phrase}" for phrase in phrases])

    def split(self, text: str) -> tuple[list[int], bytes]:
        """Return the tokens of a prefix before its last word, and the bytes of the rest.

        The model may write the rest in other tokens: `Com` as the beginning of `Computer`. It is
        empty where the tokens do not write the text as it is, as with a normalising tokenizer.
        """
        (tokens,) = self.tokens([text])
        pieces = [self.pieces[token] for token in tokens]
        if b"".join(pieces) != self.spelled(text):
            return tokens, b""
        begin = max(0, len(tokens) - MAX_HEALED)
        spaces = [i for i in range(begin, len(tokens)) if pieces[i].startswith(SPACE)]
        word = spaces[-1] if spaces else begin
        return tokens[:word], b"".join(pieces[word:])

    def spelling(self, rest: bytes) -> list[tuple[int, bytes]]:
        """Return the tokens that bytes may begin with, and the bytes that are left after each.

        None are left after a token that goes on beyond them.
        """
        begins = [(rest[:n], rest[n:]) for n in range(1, len(rest))]
        found = [(t, left) for piece, left in begins for t in self._by_piece.get(piece, ())]
        names, tokens = self._sorted
        low, high = bisect_left(names, rest), bisect_left(names, _after(rest))
        return found + [(int(token), b"") for token in tokens[low:high]]

    @cached_property
    def _by_piece(self) -> dict[bytes, list[int]]:
        tokens: dict[bytes, list[int]] = {}
        for token, piece in enumerate(self.pieces):
            if piece:
                tokens.setdefault(piece, []).append(token)
        return tokens

    @cached_property
    def _sorted(self) -> tuple[list[bytes], IntArray]:
        """The pieces that write something, sorted, and their tokens."""
        writing = [token for token, piece in enumerate(self.pieces) if piece]
        writing.sort(key=self.pieces.__getitem__)
        return [self.pieces[token] for token in writing], np.array(writing, dtype=np.int64)

    @cached_property
    def table(self) -> tuple[IntArray, IntArray]:
        """The pieces as an array [tokens, longest] of bytes, padded, and their lengths [tokens]."""
        lengths = np.fromiter(map(len, self.pieces), dtype=np.int64, count=len(self.pieces))
        padded = np.zeros((len(self.pieces), int(lengths.max(initial=1))), dtype=np.int64)
        flat = np.frombuffer(b"".join(self.pieces), dtype=np.uint8)
        padded[np.arange(padded.shape[1]) < lengths[:, None]] = flat
        return padded, lengths


def _after(text: bytes) -> bytes:
    """Return the first bytes, in sorted order, after all that begin with these."""
    stripped = text.rstrip(b"\xff")
    return stripped[:-1] + bytes([stripped[-1] + 1]) if stripped else b"\xff" * 64
