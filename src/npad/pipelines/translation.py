"""Text in, text out: a model with the functions from text to sources and from tokens to text."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial, wraps
from typing import Any, NoReturn, TypeVar, cast

from npad.engine.memory import RowBudget
from npad.errors import InvalidInput
from npad.model import Model, name_of
from npad.pipelines.batching import WINDOW_BATCHES, batches_by_length, row_weight, windows_of
from npad.pipelines.encoding import (
    EncodedBatch,
    EncodingCache,
    TooLong,
    encode_batch,
    ensure_count,
    ensure_texts,
)
from npad.pipelines.overlap import Inline, ReadAhead, runner_for
from npad.pipelines.windows import SubmittedBatch, WindowDecoder
from npad.scoring import score
from npad.search.decoder import Decoder, ensure_decoder
from npad.search.defaults import default_decoder
from npad.search.hypotheses import Hypothesis
from npad.signatures import signature
from npad.validation import brief, ensure_callable, ensure_integer

SYMBOLS_RENAMED = "Translator.symbols is deprecated and ends with npad 0.3; use tokenise"

T = TypeVar("T")


@dataclass(frozen=True)
class Translation:
    """The translation of one text.

    Attributes:
        text: the best hypothesis as text.
        log_prob: its clean log-probability, the end token included if it is finished.
        hypothesis: the best hypothesis.
        signature: how it was decoded, as `npad.signature` writes it.
        alternatives: the decoder's other hypotheses, best first, without alternatives.
        confidence: sentence chrF to expect, 0 to 100; None without calibration or as alternative.
    """

    text: str
    log_prob: float
    hypothesis: Hypothesis
    signature: str
    alternatives: tuple[Translation, ...] = ()
    confidence: float | None = None

    @classmethod
    def of(
        cls,
        hypotheses: Sequence[Hypothesis],
        texts: Iterator[str],
        signature: str,
        confidence: Callable[[Hypothesis], float | None] | None = None,
    ) -> Translation:
        """Return the first hypothesis as a translation, with the others as its alternatives.

        Args:
            hypotheses: one sentence's hypotheses, best first.
            texts: their texts; only as many as there are hypotheses are consumed.
            signature: how they were decoded.
            confidence: as `Translator.confidence`.
        """
        best, *alternatives = [
            cls(text, hypothesis.log_prob, hypothesis, signature)
            for hypothesis, text in zip(hypotheses, texts, strict=False)
        ]
        chrf = confidence(best.hypothesis) if confidence else None
        return replace(best, alternatives=tuple(alternatives), confidence=chrf)


def _accept_symbols(kind: type[T]) -> type[T]:
    """Let a constructor take `tokenise` by its old name, `symbols`, with a warning."""
    construct = kind.__init__

    @wraps(construct)
    def init(self: T, *values: Any, **named: Any) -> None:
        if "symbols" in named:
            warnings.warn(SYMBOLS_RENAMED, DeprecationWarning, stacklevel=2)
            named["tokenise"] = named.pop("symbols")
        construct(self, *values, **named)

    kind.__init__ = init  # type: ignore[assignment]
    return kind


@_accept_symbols
@dataclass(frozen=True)
class Translator:
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
    """

    model: Model[Any]
    encode: Callable[[Sequence[str]], Any]
    detokenise: Callable[[tuple[int, ...]], str]
    tokenise: Callable[[Sequence[str]], list[list[int]]] | None = None
    longest: int = 1000
    positions: int | None = None
    confidence: Callable[[Hypothesis], float | None] | None = None

    def __post_init__(self) -> None:
        ensure_callable("encode", self.encode, "a function from texts to the model's source")
        ensure_callable("detokenise", self.detokenise, "a function from tokens to text")
        if self.tokenise is not None:
            rule = "a function from texts to their tokens, or None"
            ensure_callable("tokenise", self.tokenise, rule)
        if self.confidence is not None:
            ensure_callable("confidence", self.confidence, "a function of a hypothesis, or None")
        ensure_integer("longest", self.longest, 1)
        if self.positions is not None:
            ensure_integer("positions", self.positions, 1)

    @property
    def symbols(self) -> Callable[[Sequence[str]], list[list[int]]] | None:
        """Deprecated: use `tokenise`."""
        warnings.warn(SYMBOLS_RENAMED, DeprecationWarning, stacklevel=2)
        return self.tokenise

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

    def translate(
        self,
        texts: Sequence[str],
        decoder: Decoder | None = None,
        max_length: int = 200,
        max_rows: int = 1024,
    ) -> list[Translation]:
        """Translate texts and return the translations in the same order.

        A blank text becomes an empty one. A text's noise depends on the text alone, not on its
        neighbours.

        Args:
            texts: the texts; a single string is refused.
            decoder: the search; by default `Beam(5)`, in which outputs cut at `max_length` compete
                with finished ones if the model continues texts.
            max_length: tokens that an output may have, its end token included.
            max_rows: rows (sentences × chains × beams) decoded at a time, fewer if sources are long
                or memory is short; it decides memory and speed, not the result.

        Raises:
            InvalidInput: a text is longer than `longest` allows, or an argument breaks its rule.
        """
        texts = ensure_texts(texts)
        return list(self.stream(texts, decoder, max_length, max_rows, window=max(1, len(texts))))

    def stream(
        self,
        texts: Iterable[str],
        decoder: Decoder | None = None,
        max_length: int = 200,
        max_rows: int = 1024,
        window: int | None = None,
    ) -> Generator[Translation, None, None]:
        """Translate texts as they arrive, in order, with one window of them in memory at a time.

        On a GPU, this thread tokenises while another one decodes. If the texts are wrapped in
        `npad.pipelines.overlap.ReadAhead`, it also reads the next window, and runs the consumer's
        code, while another thread decodes: two windows are then in memory. Closing the generator
        stops the decoding, after the current batch.

        Args:
            texts: an iterable of texts, which may be endless. It is read by the thread that asks
                for translations.
            decoder: as in `translate`.
            max_length: as in `translate`.
            max_rows: as in `translate`.
            window: texts read before their translations are yielded; enough for eight batches by
                default. It decides memory, speed and latency, not the result.

        Raises:
            InvalidInput: a text is longer than `longest` allows, or an argument breaks its rule.
        """
        translations = self._stream(texts, decoder, max_length, max_rows, window, self._refuse_long)
        return cast("Generator[Translation, None, None]", translations)

    def stream_or_skip(
        self,
        texts: Iterable[str],
        decoder: Decoder | None = None,
        max_length: int = 200,
        max_rows: int = 1024,
        window: int | None = None,
    ) -> Generator[Translation | TooLong, None, None]:
        """Translate texts as `stream` does, but yield a `TooLong` for each text over the limit."""
        return self._stream(texts, decoder, max_length, max_rows, window, _accept_long)

    def _stream(
        self,
        texts: Iterable[str],
        decoder: Decoder | None,
        max_length: int,
        max_rows: int,
        window: int | None,
        on_long: Callable[[int, TooLong], None],
    ) -> Generator[Translation | TooLong, None, None]:
        """Check the arguments at once; read the texts when the first translation is asked for."""
        decoder = default_decoder(self.model) if decoder is None else decoder
        ensure_decoder(decoder)
        ensure_integer("max_length", max_length, 1)
        ensure_integer("max_rows", max_rows, 1)
        if window is None:
            window = min(WINDOW_BATCHES * max(1, max_rows // decoder.rows), sys.maxsize)
        ensure_integer("window", window, 1)
        if isinstance(texts, str):
            raise InvalidInput(f"stream takes an iterable of texts; write stream([{brief(texts)}])")
        windows = windows_of(_iterator(texts), window)
        ahead = isinstance(texts, ReadAhead)
        return self._translate_windows(windows, ahead, decoder, max_length, max_rows, on_long)

    def _translate_windows(
        self,
        windows: Iterator[list[str]],
        ahead: bool,
        decoder: Decoder,
        max_length: int,
        max_rows: int,
        on_long: Callable[[int, TooLong], None],
    ) -> Generator[Translation | TooLong, None, None]:
        """Yield the translations of each window.

        ahead: whether a window may be read before the previous one has been yielded.
        on_long: called with the number of each text that is too long, before its window is yielded.
        """
        search = decoder.with_texts(self.detokenise)
        # A search that calls `detokenise` must not do so while this thread tokenises.
        runner = runner_for(self.model) if search is decoder else Inline()
        window_decoder = WindowDecoder(
            model=self.model,
            decoder=search,
            encode_batch=self._encode_batch,
            max_length=max_length,
            max_rows=max_rows,
            budget=RowBudget(max_rows),
            runner=runner,
        )
        with closing(runner):
            submitted = window_decoder.submit_all(windows, on_long)
            for window in runner.look_ahead(submitted) if ahead else submitted:
                signed = signature(decoder, self.model)
                blank = _blank_translation(signed)
                outcomes = self._translations(window.batches, signed) | window.too_long
                yield from (outcomes.get(place, blank) for place in range(window.size))

    def _translations(
        self, batches: list[SubmittedBatch], signed: str
    ) -> dict[int, Translation | TooLong]:
        """Return the translations of a window's batches by place, in the order of decoding."""
        translations: dict[int, Translation | TooLong] = {}
        for batch in batches:
            decoded = batch.hypotheses()
            outputs = iter(
                self._detokenise(
                    [hypothesis.tokens for hypotheses in decoded for hypothesis in hypotheses]
                )
            )
            for place, hypotheses in zip(batch.places, decoded, strict=True):
                translations[place] = Translation.of(hypotheses, outputs, signed, self.confidence)
        return translations

    def score(
        self, texts: Sequence[str], translations: Sequence[str], max_rows: int = 1024
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
        targets = ensure_count(self.tokenise(translations), len(texts), "tokenise")
        lengths = [sum(map(len, pair)) for pair in zip(texts, translations, strict=True)]
        budget = RowBudget(max_rows)

        def score_part(batch: EncodedBatch, places: Sequence[int]) -> list[list[float]]:
            return score(self.model, batch.part(places), [[targets[place]] for place in places])

        scores = [0.0] * len(texts)
        for places in batches_by_length(lengths, 1, max_rows):
            batch, too_long = self._encode_batch(texts, places)
            for place, excess in sorted(too_long.items()):
                self._refuse_long(place + 1, excess)
            rows = row_weight(lengths[places[-1]])
            scored = budget.run(partial(score_part, batch), places, rows)
            for place, (log_prob,) in zip(places, scored, strict=True):
                scores[place] = log_prob
        return scores

    def too_long(self, texts: Sequence[str]) -> dict[int, str]:
        """Return the sizes of the texts that are longer than allowed, by their index.

        A size is a text such as `1,204 tokens`. A text of more than `MAX_CHARACTERS_PER_TOKEN`
        characters per allowed token is not tokenised.
        """
        texts = ensure_texts(texts, "too_long")
        _, too_long = self._encode_batch(texts, range(len(texts)))
        return {place: excess.size for place, excess in sorted(too_long.items())}

    def _encode_batch(
        self, texts: Sequence[str], places: Sequence[int]
    ) -> tuple[EncodedBatch, dict[int, TooLong]]:
        return encode_batch(self.encode, self.longest, texts, places)

    def _refuse_long(self, number: int, excess: TooLong) -> NoReturn:
        raise InvalidInput(
            f"text {number} has {excess.size} and {self.longest:,} tokens are allowed; split it"
        )

    def _detokenise(self, outputs: list[tuple[int, ...]]) -> list[str]:
        """Return the texts of many hypotheses' tokens."""
        detokenise_all: Callable[[Any], list[str]] | None = getattr(self.detokenise, "all", None)
        if detokenise_all is None:
            texts = [self.detokenise(tokens) for tokens in outputs]
        else:
            texts = detokenise_all(outputs)
        for text in texts:
            if not isinstance(text, str):
                raise InvalidInput(f"detokenise must return a text, not {brief(text)}")
        return texts


def _iterator(texts: Iterable[str]) -> Iterator[str]:
    try:
        return iter(texts)
    except TypeError as error:
        raise InvalidInput(f"texts must be an iterable of texts, not {brief(texts)}") from error


def _accept_long(number: int, excess: TooLong) -> None:
    """Let a text that is too long be skipped."""


def _blank_translation(signed: str) -> Translation:
    """Return the translation of a blank text, which is not decoded."""
    return Translation("", 0.0, Hypothesis((), 0.0, finished=True), signed)
