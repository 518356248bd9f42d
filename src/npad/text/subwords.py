"""Subwords: byte-pair encoding (Sennrich et al., 2016) over bytes, so that no character is unknown and none is lost."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer

from npad.errors import InvalidInput
from npad.validation import ensure_integer

BYTES = pre_tokenizers.ByteLevel.alphabet()
MOST_BYTES = 1 << 28  # of a tokenizer.json; those of 256,000 tokens have about 2**25
MOST_GROWTH = 1 << 10  # by which the replacements of a tokenizer may lengthen a text
END = (
    0  # the end symbol; token i of the tokenizer is symbol i + 1, so that no text can spell the end
)
# Tokenising takes 130 times the memory of a text (1.3 GiB for 10 MB), so that a text too long to be used is refused
# before. The longest subword of the model that ships has 19 characters.
LETTERS = 64  # characters of a text for every symbol that it may have


@dataclass(frozen=True)
class Subwords:
    """A tokenizer of the `tokenizers` library as a vocabulary: symbol 0 ends, symbol i + 1 is token i."""

    tokenizer: Tokenizer

    @classmethod
    def learn(cls, texts: Iterable[str], size: int) -> Subwords:
        """Learn a vocabulary of at most `size` symbols: the end, the 256 bytes, and the most frequent merges."""
        least = len(BYTES) + 1
        if isinstance(size, int) and size < least:
            raise InvalidInput(
                f"vocabulary must be at least {least}, the 256 bytes and the end symbol, not {size}"
            )
        ensure_integer("vocabulary", size, least)
        tokenizer = Tokenizer(BPE())
        # A word is spelt alike at the start of a line and within: every line is given a space, and loses it again.
        tokenizer.normalizer = normalizers.Prepend(" ")
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Strip(" ", 1, 0)])
        trainer = BpeTrainer(
            vocab_size=size - 1, min_frequency=2, initial_alphabet=BYTES, show_progress=False
        )
        tokenizer.train_from_iterator(texts, trainer)
        return cls(tokenizer)

    @classmethod
    def load(cls, path: str | Path) -> Subwords:
        """From a `tokenizer.json`, npad's or another's."""
        if not Path(path).is_file():
            raise InvalidInput(f"cannot read the tokenizer {path}: there is no such file")
        if Path(path).stat().st_size > MOST_BYTES:
            raise InvalidInput(f"{path} must have at most {MOST_BYTES:,} bytes")
        try:
            text = Path(path).read_text(encoding="utf-8")
            ensure_bounded(json.loads(text), path)
            tokenizer = Tokenizer.from_str(text)
        except InvalidInput:
            raise
        except Exception as error:  # the library raises nothing narrower
            raise InvalidInput(f"{path} is no tokenizer.json: {error}") from error
        tokenizer.no_padding()  # which would be read as text
        tokenizer.no_truncation()
        size = tokenizer.get_vocab_size()
        if size == 0 or set(tokenizer.get_vocab().values()) != set(range(size)):
            raise InvalidInput(f"{path} must number its {size} tokens from 0 without a gap")
        return cls(tokenizer)

    def save(self, path: str | Path) -> None:
        Path(path).write_text(self.tokenizer.to_str(), encoding="utf-8")

    @cached_property
    def size(self) -> int:
        return int(self.tokenizer.get_vocab_size()) + 1

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """The symbols of each text, without the end."""
        try:
            encoded = self.tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        except Exception as error:  # the library raises nothing narrower
            raise InvalidInput(
                f"the tokenizer cannot read a text: {_reason(texts, error)}"
            ) from error
        return [[token + 1 for token in one.ids] for one in encoded]

    def decode(self, symbols: Sequence[int]) -> str:
        """The text of some symbols."""
        return str(
            self.tokenizer.decode([symbol - 1 for symbol in symbols], skip_special_tokens=False)
        )

    def pieces(self, symbols: Sequence[int]) -> list[str]:
        """Each symbol by itself, for people to look at."""
        return [self.decode([symbol]) if symbol != END else "⏎" for symbol in symbols]


@dataclass(frozen=True)
class Detokeniser:
    """Symbols as text."""

    subwords: Subwords

    def __call__(self, symbols: Sequence[int]) -> str:
        return self.subwords.decode(symbols)

    def all(self, many: Sequence[Sequence[int]]) -> list[str]:
        """The text of each, by all the cores there are."""
        ids = [[symbol - 1 for symbol in symbols] for symbols in many]
        return [
            str(text)
            for text in self.subwords.tokenizer.decode_batch(ids, skip_special_tokens=False)
        ]


def _reason(texts: Sequence[str], error: Exception) -> str:
    broken = (
        text for text in texts if any("\ud800" <= character <= "\udfff" for character in text)
    )
    return next((f"{text!r} holds half a surrogate pair" for text in broken), str(error))


def ensure_bounded(about: Any, name: object) -> None:
    """Refuse a tokenizer.json whose replacements could lengthen a text more than MOST_GROWTH times.

    Replacements in sequence multiply: thirty that double a letter make a gigabyte of it. The bound
    is the product, over all of them, of how much each can lengthen a text; those of tokenizers in
    use replace a space or a quotation mark and stay below ten.
    """
    sections = about if isinstance(about, dict) else {}
    parts = [sections.get(section) for section in ("normalizer", "pre_tokenizer", "decoder")]
    growth = 1.0
    while parts and growth <= MOST_GROWTH:
        part = parts.pop()
        if isinstance(part, list):
            parts += part
        elif isinstance(part, dict):
            parts += [value for value in part.values() if isinstance(value, list | dict)]
            growth *= _growth(part)
    if growth > MOST_GROWTH:
        rule = f"its replacements can lengthen a text more than {MOST_GROWTH:,} times"
        raise InvalidInput(f"{name} is no tokenizer that npad reads: {rule}; remove them")


def _growth(part: dict[str, Any]) -> float:
    """How many times a replacement can lengthen a text; a regex may match between letters too."""
    if part.get("type") != "Replace":
        return 1.0
    pattern, content = part.get("pattern"), len(str(part.get("content", "")))
    text = pattern.get("String") if isinstance(pattern, dict) else None
    return max(1.0, content / len(text)) if isinstance(text, str) and text else 1.0 + content
