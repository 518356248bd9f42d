"""Text in, text out: a model with the functions from text to sources and from tokens to text."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence, Sized
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from npad.engine.memory import RowBudget
from npad.errors import InvalidInput
from npad.hypotheses import Hypothesis
from npad.model import Model, name_of
from npad.pipelines.names import language_pair
from npad.pipelines.outputs import TooLong
from npad.pipelines.outputs import Translation as Translation
from npad.pipelines.pipeline import (
    WINDOW_BATCHES,
    Piece,
    Pipeline,
    also_named,
    batches_by_length,
    ensure_count,
    part_of,
    row_weight,
)
from npad.scoring import score
from npad.search.request import MAX_ROWS, Decoding
from npad.text.subwords import MAX_CHARACTERS_PER_TOKEN
from npad.validation import as_list, brief, ensure_callable, ensure_integer


@dataclass(frozen=True)
class Translator(Pipeline):
    """A model with the functions that connect it to text.

    Attributes:
        model: the model that decodes and scores.
        encode: maps texts to the model's source, one entry per text.
        detokenise: maps a hypothesis' tokens to text. If it has a method `all` that maps many
            hypotheses at once, that is called instead.
        tokenise: maps translations to their tokens; needed only by `score`.
        longest: tokens that a source may have; also bounds its characters, at
            `MAX_CHARACTERS_PER_TOKEN` per token.
        positions: tokens that the model can read at most; None if it has no limit.
        confidence: returns the sentence chrF to expect of a best hypothesis, or None.
        languages: the codes of source and target, such as ("en", "de"); None if unknown.
    """

    model: Model[Any]
    encode: Callable[[Sequence[str]], Any]
    detokenise: Callable[[tuple[int, ...]], str]
    tokenise: Callable[[Sequence[str]], list[list[int]]] | None = None
    longest: int = 1000
    positions: int | None = None
    confidence: Callable[[Hypothesis], float | None] | None = None
    languages: tuple[str, str] | None = None

    medium: ClassVar[str] = "text"
    translate = also_named("texts", Pipeline.decode)
    stream = also_named("texts", Pipeline.stream)
    stream_or_skip = also_named("texts", Pipeline.stream_or_skip)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.tokenise is not None:
            rule = "a function from texts to their tokens, or None"
            ensure_callable("tokenise", self.tokenise, rule)
        if self.confidence is not None:
            ensure_callable("confidence", self.confidence, "a function of a hypothesis, or None")
        if self.languages is not None:
            codes = as_list("languages", self.languages, "two codes, such as ('en', 'de')")
            object.__setattr__(self, "languages", language_pair("-".join(map(str, codes))))
        ensure_integer("longest", self.longest, 1)
        if self.positions is not None:
            ensure_integer("positions", self.positions, 1)

    def limited_to(self, tokens: int) -> Translator:
        """Return this translator with sources of at most `tokens` tokens.

        The model's own limit, `positions`, stays in force where it is lower.
        """
        return replace(
            self, longest=tokens if self.positions is None else min(tokens, self.positions)
        )

    def caching(self) -> Translator:
        """Return this translator with a cache: it tokenises each distinct text once and keeps it.

        For a set of texts that is checked and then translated, or translated by several decoders.
        The cache grows with the texts and lasts as long as the translator.
        """
        return replace(self, encode=EncodingCache(self.encode))

    def score(
        self, texts: Sequence[str], translations: Sequence[str], max_rows: int = MAX_ROWS
    ) -> list[float]:
        """Return the clean log-probability of each text's translation, end token included.

        Args:
            texts: the sources.
            translations: one per text, tokenised as `tokenise` does.
            max_rows: rows scored at a time; it decides memory and speed, not the result.

        Raises:
            InvalidInput: the translator has no `tokenise`, a source is too long, or the numbers
                of texts and translations differ.
        """
        if self.tokenise is None:
            raise InvalidInput(
                f"{name_of(self.model)} cannot score texts: its translator has no `tokenise`, "
                "the function from texts to tokens"
            )
        texts, translations = ensure_texts(texts, "score"), ensure_texts(translations, "score")
        ensure_integer("max_rows", max_rows, 1)
        if len(texts) != len(translations):
            raise InvalidInput(
                f"score takes one translation per text: {len(texts)} texts, "
                f"{len(translations)} translations"
            )
        targets = ensure_count(self.tokenise(translations), len(texts), "tokenise", "text")
        lengths = [sum(map(len, pair)) for pair in zip(texts, translations, strict=True)]
        budget, scores = RowBudget(max_rows), [0.0] * len(texts)
        for places in batches_by_length(lengths, 1, max_rows):
            pieces = [Piece(texts[place]) for place in places]
            _, source = self._encode(pieces)
            for place, piece in sorted(zip(places, pieces, strict=True)):
                if isinstance(piece.outcome, TooLong):
                    raise piece.outcome.about(f"text {place + 1}")

            def score_part(
                part: Sequence[int], source: Any = source, places: list[int] = places
            ) -> list[list[float]]:
                own = [[targets[places[index]]] for index in part]
                return score(self.model, part_of(source, part, len(places)), own)

            rows = row_weight(lengths[places[-1]])
            scored = budget.run(score_part, range(len(places)), rows)
            for place, (log_prob,) in zip(places, scored, strict=True):
                scores[place] = log_prob
        return scores

    def too_long(self, texts: Sequence[str]) -> dict[int, str]:
        """Return the sizes of the texts that are longer than allowed, by their index.

        A size is a text such as `1,204 tokens`. A text of more than `MAX_CHARACTERS_PER_TOKEN`
        characters per allowed token is not tokenised.
        """
        return {index: error.size for index, error in self._excesses(texts).items()}

    def ensure_lengths(self, texts: Sequence[str], subject: str = "text") -> None:
        """Raise a `TooLong` for the first text that is longer than allowed, such as "text 3"."""
        for index, error in self._excesses(texts).items():
            raise error.about(f"{subject} {index + 1}")

    def _excesses(self, texts: Sequence[str]) -> dict[int, TooLong]:
        pieces = [Piece(text) for text in ensure_texts(texts, "too_long")]
        self._encode(pieces)
        return {
            i: piece.outcome for i, piece in enumerate(pieces) if isinstance(piece.outcome, TooLong)
        }

    def _read(self, source: Any, number: int) -> list[Piece]:
        text = ensure_text(source)
        return [Piece(text, len(text), empty=not text.strip())]

    def _all(self, sources: Iterable[Any]) -> tuple[Iterable[Any], int | None]:
        texts = ensure_texts(sources)
        return texts, max(1, len(texts))

    def _window(self, decoding: Decoding) -> int:
        return min(WINDOW_BATCHES * max(1, decoding.max_rows // decoding.decoder.rows), sys.maxsize)

    def _encode(self, pieces: list[Piece]) -> tuple[list[Piece], Any]:
        """Encode each text once; a text of too many characters is not encoded at all."""
        for piece in pieces:
            if len(piece.content) > MAX_CHARACTERS_PER_TOKEN * self.longest:
                limit = f"(at most {MAX_CHARACTERS_PER_TOKEN} per token)"
                piece.outcome = TooLong(f"{len(piece.content):,} characters {limit}", self.longest)
        short = [piece for piece in pieces if piece.outcome is None]
        source = self._encoded([piece.content for piece in short])
        for piece, tokens in zip(short, source, strict=True):
            if isinstance(tokens, Sized) and len(tokens) > self.longest:
                piece.outcome = TooLong(f"{len(tokens):,} tokens", self.longest)
        kept = [piece for piece in short if piece.outcome is None]
        if len(kept) == len(short):
            return kept, source
        if isinstance(source, list):
            tokens_of = zip(source, short, strict=True)
            return kept, [tokens for tokens, piece in tokens_of if piece.outcome is None]
        return kept, self._encoded([piece.content for piece in kept])


class EncodingCache:
    """An `encode` that calls another one once for every distinct text, and keeps what it returned.

    Where that is not a list, its entries cannot be put together again, and nothing is kept.
    """

    def __init__(self, encode: Callable[[Sequence[str]], Any]) -> None:
        self.encode = encode
        self.entries: dict[str, Any] = {}

    def __call__(self, texts: Sequence[str]) -> Any:
        new = [text for text in dict.fromkeys(texts) if text not in self.entries]
        source = ensure_count(self.encode(new), len(new), "encode", "text") if new else []
        if not isinstance(source, list):
            return source if new == list(texts) else self.encode(texts)
        self.entries.update(zip(new, source, strict=True))
        return [self.entries[text] for text in texts]


def ensure_texts(texts: Iterable[str], method: str = "translate") -> list[str]:
    """Return a method's texts as a list."""
    if isinstance(texts, str):
        raise InvalidInput(f"{method} takes a list of texts; write {method}([{brief(texts)}])")
    return [ensure_text(text, method) for text in as_list("texts", texts, "a list of texts")]


def ensure_text(text: Any, method: str = "translate") -> str:
    """Require a text without half a surrogate pair, which cannot be encoded."""
    if not isinstance(text, str):
        raise InvalidInput(f"{method} takes texts, not {brief(text)}")
    if not text.isascii() and any("\ud800" <= letter <= "\udfff" for letter in text):
        raise InvalidInput(f"{brief(text)} holds half a surrogate pair, which is not text")
    return text
