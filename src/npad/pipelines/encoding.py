"""Texts as a model's source. Those that are too long are set apart."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence, Sized
from dataclasses import dataclass
from typing import Any

from npad.errors import InvalidInput
from npad.model import ensure_length
from npad.text.subwords import MAX_CHARACTERS_PER_TOKEN
from npad.validation import as_list, brief

Encode = Callable[[Sequence[str]], Any]  # from texts to the model's source, one entry per text


@dataclass(frozen=True)
class TooLong:
    """A text that is not translated: it exceeds the translator's limit."""

    size: str  # such as "1,204 tokens"


@dataclass(frozen=True)
class EncodedBatch:
    """The source of some texts of a window."""

    places: list[int]  # of the texts in their window
    source: Any  # what `encode` returned for them

    def part(self, places: Sequence[int]) -> Any:
        """Return the source of consecutive places of this batch."""
        if len(places) == len(self.places):
            return self.source
        start = self.places.index(places[0])
        return self.source[start : start + len(places)]


def encode_batch(
    encode: Encode, longest: int, texts: Sequence[str], places: Sequence[int]
) -> tuple[EncodedBatch, dict[int, TooLong]]:
    """Encode the texts at `places`, each once; those that are too long are returned apart.

    Args:
        encode: maps texts to the model's source.
        longest: tokens that a source may have; also bounds its characters, at
            `MAX_CHARACTERS_PER_TOKEN` per token.
        texts: the texts of a window.
        places: which of them to encode.
    """
    max_characters = MAX_CHARACTERS_PER_TOKEN * longest
    too_long = {
        place: TooLong(
            f"{len(texts[place]):,} characters (at most {MAX_CHARACTERS_PER_TOKEN} per token)"
        )
        for place in places
        if len(texts[place]) > max_characters
    }
    short = [place for place in places if place not in too_long]
    source = _encode(encode, [texts[place] for place in short])
    too_long |= {
        place: TooLong(f"{len(tokens):,} tokens")
        for place, tokens in zip(short, source, strict=True)
        if isinstance(tokens, Sized) and len(tokens) > longest
    }
    kept = [index for index, place in enumerate(short) if place not in too_long]
    if len(kept) < len(short):
        source = (
            [source[index] for index in kept]
            if isinstance(source, list)
            else _encode(encode, [texts[short[index]] for index in kept])
        )
    return EncodedBatch([short[index] for index in kept], source), too_long


class EncodingCache:
    """An `encode` that calls another one once for every distinct text, and keeps what it returned.

    Where that is not a list, its entries cannot be put together anew, and nothing is kept.
    """

    def __init__(self, encode: Encode) -> None:
        self.encode = encode
        self.entries: dict[str, Any] = {}

    def __call__(self, texts: Sequence[str]) -> Any:
        new = [text for text in dict.fromkeys(texts) if text not in self.entries]
        source = _encode(self.encode, new)
        if not isinstance(source, list):
            return source if new == list(texts) else self.encode(texts)
        self.entries.update(zip(new, source, strict=True))
        return [self.entries[text] for text in texts]


def _encode(encode: Encode, texts: list[str]) -> Any:
    return ensure_count(encode(texts), len(texts), "encode") if texts else []


def ensure_texts(texts: Iterable[str], method: str = "translate") -> list[str]:
    """Return a method's texts as a list."""
    if isinstance(texts, str):
        raise InvalidInput(f"{method} takes a list of texts; write {method}([{brief(texts)}])")
    texts = as_list("texts", texts, "a list of texts")
    for text in texts:
        if not isinstance(text, str):
            raise InvalidInput(f"{method} takes texts, not {brief(text)}")
        if not text.isascii() and any("\ud800" <= letter <= "\udfff" for letter in text):
            raise InvalidInput(f"{brief(text)} holds half a surrogate pair, which is no text")
    return texts


def ensure_count(entries: Any, texts: int, function: str) -> Any:
    """Require that a function of a translator returned one entry per text."""
    count = ensure_length(entries, f"what {function} returns")
    if count != texts:
        raise InvalidInput(
            f"{function} must return one entry per text: it returned {count} for {texts}"
        )
    return entries
