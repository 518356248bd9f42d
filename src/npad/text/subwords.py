"""Subword vocabularies: byte-level BPE (Sennrich et al., 2016), and SentencePiece models."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer

from npad.constraints.vocabulary import Vocabulary
from npad.errors import InvalidInput, StorageError, missing_library
from npad.storage.regular import read_bytes
from npad.validation import ensure_integer

SIDES = ("source", "target")
TOKENIZER_FILES = tuple(f"{side}.tokenizer.json" for side in SIDES)  # in models and token stores
ALPHABET = pre_tokenizers.ByteLevel.alphabet()  # a character for each of the 256 bytes
MAX_TOKENIZER_BYTES = 1 << 28  # a tokenizer.json of 256,000 tokens has about 2**25
MAX_GROWTH = 1 << 10  # factor by which a tokenizer's replacements may lengthen a text
END = 0  # the end token; id i of the tokenizer is token i + 1, so that no text can spell the end
# Tokenising takes 130 times the memory of a text (1.3 GiB for 10 MB), so a text that must be too
# long is refused beforehand. The longest subword of the shipped model has 19 characters.
MAX_CHARACTERS_PER_TOKEN = 64
MAX_IN_TURN = 16  # outputs; the library takes longer to divide so few among the cores


@dataclass(frozen=True)
class Subwords:
    """The vocabulary of a `tokenizers` tokenizer: token 0 is the end, token i + 1 its id i."""

    tokenizer: Tokenizer

    @classmethod
    def learn(cls, texts: Iterable[str], size: int) -> Subwords:
        """Learn a BPE vocabulary: the end token, the 256 bytes, and the most frequent merges.

        Args:
            texts: the lines to learn from.
            size: the number of tokens at most, at least 257.

        Raises:
            InvalidInput: `size` is too small.
        """
        minimum = len(ALPHABET) + 1
        if isinstance(size, int) and size < minimum:
            rule = f"vocabulary must be at least {minimum}, the 256 bytes and the end token"
            raise InvalidInput(f"{rule}, not {size}")
        ensure_integer("vocabulary", size, minimum)
        tokenizer = Tokenizer(BPE())
        # Prepend a space to every line, and strip it again, so that a word has the same tokens at
        # the start of a line and within.
        tokenizer.normalizer = normalizers.Prepend(" ")
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Strip(" ", 1, 0)])
        trainer = BpeTrainer(
            vocab_size=size - 1, min_frequency=2, initial_alphabet=ALPHABET, show_progress=False
        )
        tokenizer.train_from_iterator(texts, trainer)
        return cls(tokenizer)

    @classmethod
    def load(cls, path: str | Path) -> Subwords:
        """Load a `tokenizer.json`, written by npad or by another program.

        Padding and truncation are switched off.

        Raises:
            InvalidInput: the file is missing, too large, or no tokenizer that npad can use.
        """
        if not Path(path).is_file():
            raise InvalidInput(f"cannot read the tokenizer {path}: there is no such file")
        try:
            text = read_bytes(path, MAX_TOKENIZER_BYTES).decode("utf-8")
            ensure_bounded(json.loads(text), path)
            tokenizer = Tokenizer.from_str(text)
        except InvalidInput:
            raise
        except Exception as error:  # the library raises nothing narrower
            raise InvalidInput(f"{path} is not a tokenizer.json: {error}") from error
        tokenizer.no_padding()  # padding would be read as text
        tokenizer.no_truncation()
        size = tokenizer.get_vocab_size()
        if size == 0 or set(tokenizer.get_vocab().values()) != set(range(size)):
            raise InvalidInput(f"{path} must number its {size} tokens from 0 without a gap")
        return cls(tokenizer)

    def save(self, path: str | Path) -> None:
        """Write a `tokenizer.json`."""
        Path(path).write_text(self.tokenizer.to_str(), encoding="utf-8")

    @cached_property
    def size(self) -> int:
        """The number of tokens, the end token included."""
        return int(self.tokenizer.get_vocab_size()) + 1

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the tokens of each text, without the end token.

        Raises:
            InvalidInput: the tokenizer cannot encode a text.
        """
        try:
            encodings = self.tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        except Exception as error:  # the library raises nothing narrower
            raise InvalidInput(
                f"the tokenizer cannot read a text: {_reason(texts, error)}"
            ) from error
        return [[identifier + 1 for identifier in encoding.ids] for encoding in encodings]

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens."""
        return str(self.tokenizer.decode(_identifiers(tokens), skip_special_tokens=False))

    def pieces(self, tokens: Sequence[int]) -> list[str]:
        """Return the text of each token by itself, for display; the end token is ⏎."""
        return [self.decode([token]) if token != END else "⏎" for token in tokens]


@dataclass(frozen=True)
class Detokeniser:
    """A callable that turns tokens into text."""

    subwords: Subwords

    def __call__(self, tokens: Sequence[int]) -> str:
        return self.subwords.decode(tokens)

    def vocabulary(self) -> Vocabulary:
        """Return what each token writes."""
        tokenizer = self.subwords.tokenizer
        names = [tokenizer.id_to_token(i) or "" for i in range(self.subwords.size - 1)]
        pieces = pieces_of(names, json.loads(tokenizer.to_str()))
        return vocabulary_of([b"", *pieces], self.subwords.encode)

    def all(self, sequences: Sequence[Sequence[int]]) -> list[str]:
        """Decode many sequences of tokens, in parallel on all cores."""
        if len(sequences) <= MAX_IN_TURN:
            return [self(tokens) for tokens in sequences]
        batch = [_identifiers(tokens) for tokens in sequences]
        texts = self.subwords.tokenizer.decode_batch(batch, skip_special_tokens=False)
        return [str(text) for text in texts]


@dataclass(frozen=True)
class SentencePieces:
    """A SentencePiece model (Kudo & Richardson, 2018), as Firefox has them; tokens are its ids."""

    processor: Any

    @classmethod
    def parse(cls, content: bytes, path: Path) -> SentencePieces:
        """Parse the content of a `.spm` file.

        Args:
            content: the unpacked bytes.
            path: the file, for error messages.

        Raises:
            InvalidInput: the library is not installed.
            StorageError: the content is not a SentencePiece model, or has no end token.
        """
        try:
            from sentencepiece import SentencePieceProcessor
        except ImportError as error:
            raise missing_library("Firefox's models need sentencepiece", "firefox") from error
        try:
            processor = SentencePieceProcessor(model_proto=content)
        except (RuntimeError, ValueError, TypeError) as error:
            raise StorageError(f"{path} is not a valid SentencePiece model") from error
        if processor.get_piece_size() < 1 or processor.eos_id() != 0:
            raise StorageError(f"{path} is not a Marian vocabulary: its end token must be token 0")
        return cls(processor)

    def __len__(self) -> int:
        return int(self.processor.get_piece_size())

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the tokens of texts, without end tokens."""
        # given a list, even with one thread, it starts a thread
        return [list(self.processor.encode(text)) for text in texts]

    def __call__(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens."""
        return str(self.processor.decode(list(tokens)))

    def vocabulary(self) -> Vocabulary:
        """Return what each token writes."""
        names = [self.processor.id_to_piece(i) for i in range(len(self))]
        return vocabulary_of(pieces_of(names), self.encode)

    def all(self, sequences: Sequence[Sequence[int]]) -> list[str]:
        """Return the texts of many sequences of tokens."""
        return [self(tokens) for tokens in sequences]


@dataclass(frozen=True, eq=False)
class PretrainedDetokeniser:
    """A callable that turns tokens of a Hugging Face tokenizer into text, without special ones."""

    tokenizer: Any

    def __call__(self, tokens: Sequence[int]) -> str:
        return str(self.tokenizer.decode(list(tokens), skip_special_tokens=True)).strip()

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the tokens of outputs, without special ones."""
        batch = self.tokenizer(text_target=list(texts), add_special_tokens=False)["input_ids"]
        return [list(tokens) for tokens in batch]

    def vocabulary(self) -> Vocabulary:
        """Return what each token writes."""
        names = self.tokenizer.convert_ids_to_tokens(list(range(len(self.tokenizer))))
        backend = getattr(self.tokenizer, "backend_tokenizer", None)
        pieces = pieces_of(names, None if backend is None else json.loads(backend.to_str()))
        for token in self.tokenizer.all_special_ids:
            pieces[token] = b""
        return vocabulary_of(pieces, self.encode)


def vocabulary_of(
    pieces: list[bytes], encode: Callable[[Sequence[str]], list[list[int]]]
) -> Vocabulary:
    """Return what tokens write, from their pieces and the function from texts to tokens."""
    (tokens,) = encode(["a"])
    leading = b"".join(pieces[token] for token in tokens).startswith(b" ")
    return Vocabulary(pieces, encode, leading)


def pieces_of(names: Sequence[str], config: Any = None) -> list[bytes]:
    """Return the bytes that tokens write, by their names in a vocabulary.

    Args:
        names: of all tokens, such as `ĠHaus`, `▁Haus` or `<0x0A>`.
        config: the parsed tokenizer.json; a model of SentencePiece has none.
    """
    config = config or {}
    special = {added["content"] for added in config.get("added_tokens", []) if added["special"]}
    if '"ByteLevel"' in json.dumps([config.get("decoder"), config.get("pre_tokenizer")]):
        values = {letter: byte for byte, letter in byte_letters().items()}
        known = [name not in special and all(letter in values for letter in name) for name in names]
        return [
            bytes(values[letter] for letter in name) if spelled else b""
            for name, spelled in zip(names, known, strict=True)
        ]
    special |= {"<s>", "</s>", "<unk>", "<pad>"}
    return [b"" if name in special else _piece(name) for name in names]


def _piece(name: str) -> bytes:
    """Return what a token of SentencePiece writes."""
    byte = re.fullmatch("<0x([0-9A-F]{2})>", name)
    return bytes([int(byte[1], 16)]) if byte else name.replace("▁", " ").encode()


def byte_letters() -> dict[int, str]:
    """Return the letter by which byte-level BPE writes each byte."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in plain]
    return {b: chr(b) for b in plain} | {b: chr(256 + n) for n, b in enumerate(others)}


def _identifiers(tokens: Sequence[int]) -> list[int]:
    """Return the tokenizer's ids of tokens."""
    return [token - 1 for token in tokens]


def _reason(texts: Sequence[str], error: Exception) -> str:
    broken = (
        text for text in texts if any("\ud800" <= character <= "\udfff" for character in text)
    )
    return next((f"{text!r} holds half a surrogate pair" for text in broken), str(error))


def ensure_bounded(config: Any, name: object) -> None:
    """Refuse a tokenizer whose replacements could lengthen a text more than MAX_GROWTH times.

    Replacements in sequence multiply: thirty that double a letter make a gigabyte of it. The bound
    is on the product of the growth of all replacements; tokenizers in use replace a space or a
    quotation mark and stay below ten.

    Args:
        config: the parsed tokenizer.json.
        name: what an error calls the tokenizer.

    Raises:
        InvalidInput: the product is above the bound.
    """
    sections = config if isinstance(config, dict) else {}
    parts = [sections.get(section) for section in ("normalizer", "pre_tokenizer", "decoder")]
    growth = 1.0
    while parts and growth <= MAX_GROWTH:
        part = parts.pop()
        if isinstance(part, list):
            parts += part
        elif isinstance(part, dict):
            parts += [value for value in part.values() if isinstance(value, list | dict)]
            growth *= _growth(part)
    if growth > MAX_GROWTH:
        rule = f"its replacements can lengthen a text more than {MAX_GROWTH:,} times"
        raise InvalidInput(f"{name} is not a tokenizer that npad reads: {rule}; remove them")


def _growth(part: dict[str, Any]) -> float:
    """Return the factor by which a replacement can lengthen a text."""
    if part.get("type") != "Replace":
        return 1.0
    pattern, content = part.get("pattern"), len(str(part.get("content", "")))
    text = pattern.get("String") if isinstance(pattern, dict) else None
    if isinstance(text, str) and text:
        return max(1.0, content / len(text))
    return 1.0 + content  # a regex may match between any two letters
