"""Tokens as pieces of text, for display: "▁" stands for the space before a word."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from npad.pipelines.translation import Translator
from npad.text.subwords import END, Subwords

SPACE = "▁"
END_PIECE = "</s>"
ANCHORS = 5000  # tokens among which one that can precede any other is looked for


class Pieces:
    """The pieces of tokens, by a translator's `detokenise`.

    A detokeniser may strip the space at the start of a text, so that a token is decoded after
    another one, the anchor.
    """

    def __init__(self, detokenise: Callable[[tuple[int, ...]], str]) -> None:
        self.detokenise = detokenise
        self.anchor = self._find_anchor()
        self.known: dict[int, str] = {}

    def __call__(self, tokens: Sequence[int]) -> list[str]:
        """Return the piece of each token."""
        return [self._piece(token) for token in tokens]

    def _piece(self, token: int) -> str:
        if token not in self.known:
            self.known[token] = self._read(token).replace(" ", SPACE)
        return self.known[token]

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


def source_subwords(translator: Translator) -> Subwords | None:
    """Return the vocabulary that encodes the sources of a model trained by npad; else None."""
    subwords = getattr(translator.encode, "__self__", None)
    return subwords if isinstance(subwords, Subwords) else None


def source_pieces(pieces: Pieces | None, text: str, source: Any) -> list[str]:
    """Return the pieces of a source, its end token included; its words if tokens are unknown.

    Args:
        pieces: those of the source's vocabulary, if it is known.
        text: the source as text.
        source: what `encode` returned for the text.
    """
    if pieces is None:
        return [f"{SPACE}{word}" for word in text.split()]
    return [*pieces([token for token in source if token != END]), END_PIECE]
