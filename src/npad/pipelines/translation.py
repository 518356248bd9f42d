"""Text in, text out: a model with the functions from text to sources and from tokens to text."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass, replace
from functools import partial, wraps
from itertools import islice
from pathlib import Path
from typing import Any, NoReturn, TypeVar, cast

import torch

from npad.decoding import decode
from npad.engine.devices import PRECISIONS, device_named
from npad.engine.memory import RowBudget
from npad.errors import InvalidInput
from npad.model import Model, ensure_length, name_of
from npad.models import toy
from npad.models.cgru.fast import prepared
from npad.models.huggingface.processed import Processed
from npad.models.low_precision import LowPrecision
from npad.noise.random import stable_hash
from npad.pipelines.names import ModelReference
from npad.scoring import score
from npad.search.beam import Beam
from npad.search.decoder import Decoder, ensure_decoder
from npad.search.hypotheses import Hypothesis
from npad.search.npad import NPAD
from npad.search.selectors import MBR
from npad.signatures import signature
from npad.storage import checkpoint
from npad.text.subwords import MAX_CHARACTERS_PER_TOKEN, Detokeniser
from npad.validation import as_list, brief, ensure_callable, ensure_choice, ensure_integer

WINDOW_BATCHES = 8  # batches that a stream reads ahead, to group texts of similar length
CHARACTERS_PER_ROW = 256  # a text counts as one more row for every so many characters
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
    """

    text: str
    log_prob: float
    hypothesis: Hypothesis
    signature: str
    alternatives: tuple[Translation, ...] = ()

    @classmethod
    def of(
        cls, hypotheses: Sequence[Hypothesis], texts: Iterator[str], signature: str
    ) -> Translation:
        """Return the first hypothesis as a translation, with the others as its alternatives.

        Args:
            hypotheses: one sentence's hypotheses, best first.
            texts: their texts; only as many as there are hypotheses are consumed.
            signature: how they were decoded.
        """
        best, *alternatives = [
            cls(text, hypothesis.log_prob, hypothesis, signature)
            for hypothesis, text in zip(hypotheses, texts, strict=False)
        ]
        return replace(best, alternatives=tuple(alternatives))


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
    """

    model: Model[Any]
    encode: Callable[[Sequence[str]], Any]
    detokenise: Callable[[tuple[int, ...]], str]
    tokenise: Callable[[Sequence[str]], list[list[int]]] | None = None
    longest: int = 1000
    positions: int | None = None

    def __post_init__(self) -> None:
        ensure_callable("encode", self.encode, "a function from texts to the model's source")
        ensure_callable("detokenise", self.detokenise, "a function from tokens to text")
        if self.tokenise is not None:
            ensure_callable(
                "tokenise", self.tokenise, "a function from texts to their tokens, or None"
            )
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
            decoder: the search; `Beam(5)` by default.
            max_length: tokens that an output may have, its end token included.
            max_rows: rows (sentences × chains × beams) decoded at a time, fewer if sources are long
                or memory is short; it decides memory and speed, not the result.

        Raises:
            InvalidInput: a text is longer than `longest` allows, or an argument breaks its rule.
        """
        texts = _ensure_texts(texts)
        return list(self.stream(texts, decoder, max_length, max_rows, window=max(1, len(texts))))

    def stream(
        self,
        texts: Iterable[str],
        decoder: Decoder | None = None,
        max_length: int = 200,
        max_rows: int = 1024,
        window: int | None = None,
    ) -> Iterator[Translation]:
        """Translate texts as they arrive, in order, with one window of them in memory at a time.

        Args:
            texts: an iterable of texts, which may be endless.
            decoder: as in `translate`.
            max_length: as in `translate`.
            max_rows: as in `translate`.
            window: texts read before their translations are yielded; enough for eight batches by
                default. It decides memory, speed and latency, not the result.

        Raises:
            InvalidInput: a text is longer than `longest` allows, or an argument breaks its rule.
        """
        translations = self._stream(texts, decoder, max_length, max_rows, window, self._refuse_long)
        return cast("Iterator[Translation]", translations)

    def stream_or_skip(
        self,
        texts: Iterable[str],
        decoder: Decoder | None = None,
        max_length: int = 200,
        max_rows: int = 1024,
        window: int | None = None,
    ) -> Iterator[Translation | TooLong]:
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
    ) -> Iterator[Translation | TooLong]:
        """Check the arguments at once; read the texts when the first translation is asked for."""
        decoder = Beam() if decoder is None else decoder
        ensure_decoder(decoder)
        ensure_integer("max_length", max_length, 1)
        ensure_integer("max_rows", max_rows, 1)
        if window is None:
            window = min(WINDOW_BATCHES * max(1, max_rows // decoder.rows), sys.maxsize)
        ensure_integer("window", window, 1)
        if isinstance(texts, str):
            raise InvalidInput(f"stream takes an iterable of texts; write stream([{brief(texts)}])")
        windows = _windows(_iterator(texts), window)
        return self._translate_windows(
            windows, decoder, max_length, max_rows, RowBudget(max_rows), on_long
        )

    def _translate_windows(
        self,
        windows: Iterator[list[str]],
        decoder: Decoder,
        max_length: int,
        max_rows: int,
        budget: RowBudget,
        on_long: Callable[[int, TooLong], None],
    ) -> Iterator[Translation | TooLong]:
        """Yield the translations of each window.

        on_long: called with the number of each text that is too long, before its window is decoded.
        """
        number = 1  # of the window's first text
        for texts in windows:
            batches, too_long = self._encode_window(texts, decoder.rows, max_rows)
            for place, excess in sorted(too_long.items()):
                on_long(number + place, excess)
            translations = self._translate_batches(
                texts, batches, decoder, max_length, max_rows, budget
            )
            blank = _blank_translation(signature(decoder, self.model))
            outcomes = translations | too_long
            yield from (outcomes.get(place, blank) for place in range(len(texts)))
            number += len(texts)

    def _translate_batches(
        self,
        texts: list[str],
        batches: list[EncodedBatch],
        decoder: Decoder,
        max_length: int,
        max_rows: int,
        budget: RowBudget,
    ) -> dict[int, Translation | TooLong]:
        """Return the translations by place."""
        search, signed = self._with_texts(decoder), signature(decoder, self.model)

        def decode_part(batch: EncodedBatch, places: Sequence[int]) -> list[list[Hypothesis]]:
            ids = [stable_hash(texts[place]) for place in places]
            return decode(self.model, batch.part(places), search, max_length, ids, max_rows)

        translations: dict[int, Translation | TooLong] = {}
        for batch in batches:
            rows = decoder.rows * _row_weight(len(texts[batch.places[-1]]))
            decoded = budget.run(partial(decode_part, batch), batch.places, rows)
            outputs = iter(
                self._detokenise(
                    [hypothesis.tokens for hypotheses in decoded for hypothesis in hypotheses]
                )
            )
            for place, hypotheses in zip(batch.places, decoded, strict=True):
                translations[place] = Translation.of(hypotheses, outputs, signed)
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
        texts, translations = _ensure_texts(texts, "score"), _ensure_texts(translations, "score")
        ensure_integer("max_rows", max_rows, 1)
        if len(texts) != len(translations):
            raise InvalidInput(
                f"score takes one translation per text: {len(texts)} texts, "
                f"{len(translations)} translations"
            )
        targets = _ensure_count(self.tokenise(translations), len(texts), "tokenise")
        lengths = [
            len(text) + len(translation)
            for text, translation in zip(texts, translations, strict=True)
        ]
        budget = RowBudget(max_rows)

        def score_part(batch: EncodedBatch, places: Sequence[int]) -> list[list[float]]:
            return score(self.model, batch.part(places), [[targets[place]] for place in places])

        scores = [0.0] * len(texts)
        for places in _batches(lengths, 1, max_rows):
            batch, too_long = self._encode_batch(texts, places)
            for place, excess in sorted(too_long.items()):
                self._refuse_long(place + 1, excess)
            rows = _row_weight(lengths[places[-1]])
            scored = budget.run(partial(score_part, batch), places, rows)
            for place, (log_prob,) in zip(places, scored, strict=True):
                scores[place] = log_prob
        return scores

    def too_long(self, texts: Sequence[str]) -> dict[int, str]:
        """Return the sizes of the texts that are longer than allowed, by their index.

        A size is a text such as `1,204 tokens`. A text of more than `MAX_CHARACTERS_PER_TOKEN`
        characters per allowed token is not tokenised.
        """
        texts = _ensure_texts(texts, "too_long")
        _, too_long = self._encode_batch(texts, range(len(texts)))
        return {place: excess.size for place, excess in sorted(too_long.items())}

    def _encode_window(
        self, texts: list[str], rows: int, max_rows: int
    ) -> tuple[list[EncodedBatch], dict[int, TooLong]]:
        """Encode the texts of a window that are not blank, in batches of similar length."""
        places = [place for place, text in enumerate(texts) if text.strip()]
        encoded: list[EncodedBatch] = []
        too_long: dict[int, TooLong] = {}
        for indices in _batches([len(texts[place]) for place in places], rows, max_rows):
            batch, excess = self._encode_batch(texts, [places[index] for index in indices])
            encoded += [batch] if batch.places else []
            too_long |= excess
        return encoded, too_long

    def _encode_batch(
        self, texts: Sequence[str], places: Sequence[int]
    ) -> tuple[EncodedBatch, dict[int, TooLong]]:
        """Encode the texts at `places`, each once; those that are too long are returned apart."""
        max_characters = MAX_CHARACTERS_PER_TOKEN * self.longest
        too_long = {
            place: TooLong(
                f"{len(texts[place]):,} characters (at most {MAX_CHARACTERS_PER_TOKEN} per token)"
            )
            for place in places
            if len(texts[place]) > max_characters
        }
        short = [place for place in places if place not in too_long]
        source = self._encode([texts[place] for place in short])
        too_long |= {
            place: TooLong(f"{len(tokens):,} tokens")
            for place, tokens in zip(short, source, strict=True)
            if isinstance(tokens, Sized) and len(tokens) > self.longest
        }
        kept = [index for index, place in enumerate(short) if place not in too_long]
        if len(kept) < len(short):
            source = (
                [source[index] for index in kept]
                if isinstance(source, list)
                else self._encode([texts[short[index]] for index in kept])
            )
        return EncodedBatch([short[index] for index in kept], source), too_long

    def _encode(self, texts: list[str]) -> Any:
        return _ensure_count(self.encode(texts), len(texts), "encode") if texts else []

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

    def _with_texts(self, decoder: Decoder) -> Decoder:
        """Let MBR compare texts instead of tokens."""
        if (
            isinstance(decoder, NPAD)
            and isinstance(decoder.selector, MBR)
            and decoder.selector.text is None
        ):
            return replace(decoder, selector=replace(decoder.selector, text=self.detokenise))
        return decoder


def load(
    name: str | Path, device: str | torch.device = "cpu", precision: str = "float32"
) -> Translator:
    """Load a model by name and return its translator.

    Args:
        name: `en-de` (English to German, everyday sentences); `toy`, an exact model of four German
            phrases; a folder that `npad train` wrote; `hf:NAME_OR_PATH`, a Hugging Face model with
            its tokenizer, or `hf:NAME:eng_Latn-deu_Latn` to choose the languages of a multilingual
            one. A decoder-only model continues the text.
        device: "cpu", "cuda", "cuda:1" or "auto".
        precision: of NPAD's noisy chains: "float32", "bfloat16", "float16", or "int8" on a CPU.
            Everything else, and every score, is in float32.

    Raises:
        InvalidInput: there is no such model, device or precision.
        StorageError: the model's files are damaged.
    """
    reference = ModelReference.parse(name)
    ensure_choice("precision", precision, tuple(PRECISIONS))
    device = device_named(device)
    if reference.pretrained is not None:
        translator = _load_pretrained(reference.pretrained, device)
    elif reference.folder is not None:
        translator = _load_folder(reference.folder, device)
    else:
        translator = Translator(toy.model(), list, toy.detokenise, toy.tokenise)
    if precision == "float32":
        return translator
    return replace(translator, model=LowPrecision(translator.model, precision))


def _load_folder(folder: Path, device: torch.device) -> Translator:
    """Load a model that npad trained."""
    saved = checkpoint.load(folder, device)
    source, target = saved.subwords
    return Translator(prepared(saved.model), source.encode, Detokeniser(target), target.encode)


def _load_pretrained(name: str, device: torch.device) -> Translator:
    """Load a Hugging Face model with its tokenizer."""
    from npad.models.huggingface.loading import text_model  # needs the extra `hf`

    model, tokenizer = text_model(name, device)

    def encode(texts: Sequence[str]) -> list[list[int]]:
        return [list(ids) for ids in tokenizer(list(texts))["input_ids"]]

    def encode_target(texts: Sequence[str]) -> list[list[int]]:
        batch = tokenizer(text_target=list(texts), add_special_tokens=False)["input_ids"]
        return [list(ids) for ids in batch]

    def detokenise(tokens: tuple[int, ...]) -> str:
        return str(tokenizer.decode(list(tokens), skip_special_tokens=True)).strip()

    translator = Translator(model, encode, detokenise, encode_target)
    longest = (model.model if isinstance(model, Processed) else model).longest
    if longest is None:
        return translator
    return replace(translator, longest=longest - 1, positions=longest - 1)


def _ensure_texts(texts: Iterable[str], method: str = "translate") -> list[str]:
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


def _iterator(texts: Iterable[str]) -> Iterator[str]:
    try:
        return iter(texts)
    except TypeError as error:
        raise InvalidInput(f"texts must be an iterable of texts, not {brief(texts)}") from error


def _ensure_count(entries: Any, texts: int, function: str) -> Any:
    """Require that a function of a translator returned one entry per text."""
    count = ensure_length(entries, f"what {function} returns")
    if count != texts:
        raise InvalidInput(
            f"{function} must return one entry per text: it returned {count} for {texts}"
        )
    return entries


def _accept_long(number: int, excess: TooLong) -> None:
    """Let a text that is too long be skipped."""


def _blank_translation(signed: str) -> Translation:
    """Return the translation of a blank text, which is not decoded."""
    return Translation("", 0.0, Hypothesis((), 0.0, finished=True), signed)


def _windows(texts: Iterator[str], size: int) -> Iterator[list[str]]:
    """Yield consecutive lists of `size` texts, the last of which may be shorter."""
    while window := _ensure_texts(islice(texts, size)):
        yield window


def _batches(lengths: list[int], rows: int, max_rows: int) -> Iterator[list[int]]:
    """Yield the indices of texts in batches of similar length, shortest first.

    Args:
        lengths: characters of the texts.
        rows: rows that a short text takes.
        max_rows: rows that a batch may take; a long text counts for more.
    """
    batch: list[int] = []
    for index in sorted(range(len(lengths)), key=lengths.__getitem__):
        if batch and (len(batch) + 1) * rows * _row_weight(lengths[index]) > max_rows:
            yield batch
            batch = []
        batch.append(index)
    if batch:
        yield batch


def _row_weight(characters: int) -> int:
    """Return how many short texts' rows a text of this length counts for."""
    return 1 + characters // CHARACTERS_PER_ROW
