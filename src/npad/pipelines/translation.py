"""Text in, text out: a model together with what turns text into its input and its symbols into text."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

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
from npad.scoring import score
from npad.search.beam import Beam
from npad.search.decoder import Decoder, ensure_decoder
from npad.search.hypotheses import Hypothesis
from npad.search.npad import NPAD
from npad.search.selectors import MBR
from npad.signatures import signature
from npad.storage import checkpoint
from npad.text.subwords import MAX_CHARACTERS_PER_TOKEN, Detokeniser
from npad.validation import (
    as_list,
    brief,
    ensure_callable,
    ensure_choice,
    ensure_integer,
    ensure_path,
)

SHIPPED = {
    path.name: path
    for path in (Path(__file__).parent.parent / "shipped").iterdir()
    if path.is_dir()
}
WINDOW = 8  # batches that a stream reads ahead, to put texts of like length together


@dataclass(frozen=True)
class Translation:
    """What one text became. `alternatives` are the decoder's other hypotheses, best first, without their own."""

    text: str
    log_prob: float
    hypothesis: Hypothesis
    signature: str
    alternatives: tuple[Translation, ...] = ()

    @classmethod
    def of(cls, found: Sequence[Hypothesis], texts: Iterator[str], how: str) -> Translation:
        """The best of some hypotheses, with the others as alternatives; `texts` are theirs, and go on with others'."""
        best, *rest = [
            cls(text, one.log_prob, one, how) for one, text in zip(found, texts, strict=False)
        ]
        return replace(best, alternatives=tuple(rest))


@dataclass(frozen=True)
class Translator:
    """A model with its text: `encode` makes the model's source of texts, `detokenise` text of a hypothesis' symbols.

    symbols: the symbols of translations, where texts are to be scored. longest: symbols that a source may have,
    and `MAX_CHARACTERS_PER_TOKEN` characters for each of them.
    Where `detokenise` has a method `all`, of many hypotheses at once, that is used.
    """

    model: Model[Any]
    encode: Callable[[Sequence[str]], Any]
    detokenise: Callable[[tuple[int, ...]], str]
    symbols: Callable[[Sequence[str]], list[list[int]]] | None = None
    longest: int = 1000

    def __post_init__(self) -> None:
        ensure_callable("encode", self.encode, "a function from texts to the model's source")
        ensure_callable("detokenise", self.detokenise, "a function from symbols to text")
        if self.symbols is not None:
            ensure_callable(
                "symbols", self.symbols, "a function from texts to their symbols, or None"
            )
        ensure_integer("longest", self.longest, 1)

    def translate(
        self,
        texts: Sequence[str],
        decoder: Decoder | None = None,
        max_length: int = 200,
        max_rows: int = 1024,
    ) -> list[Translation]:
        """Translate texts, in their order; a blank one becomes an empty one.

        A text's noise depends on the text alone, not on its neighbours. max_rows: rows (sentences × chains × beams)
        decoded at a time, fewer where sources are long or memory is short; it decides memory and speed, not the result.
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
        """Translate texts as they come, in their order, with one window of them in memory at a time.

        So many texts as `window` says are read, translated and handed on before more are read; eight batches' worth
        unless given. It decides memory, speed and how soon there is a result, not the result.
        """
        decoder = Beam() if decoder is None else decoder
        ensure_decoder(decoder)
        ensure_integer("max_length", max_length, 1)
        ensure_integer("max_rows", max_rows, 1)
        if window is None:
            window = WINDOW * max(1, max_rows // decoder.rows)
        ensure_integer("window", window, 1)
        if isinstance(texts, str):
            raise InvalidInput(
                f"stream takes texts, one after the other; write stream([{brief(texts)}])"
            )
        return self._windows(
            _iterator(texts), decoder, max_length, max_rows, min(window, sys.maxsize)
        )

    def _windows(
        self, texts: Iterator[str], decoder: Decoder, max_length: int, max_rows: int, window: int
    ) -> Iterator[Translation]:
        room, first = RowBudget(max_rows), 1
        while some := _ensure_texts(islice(texts, window)):
            yield from self._window(some, first, decoder, max_length, max_rows, room)
            first += len(some)

    def _window(
        self,
        texts: list[str],
        first: int,
        decoder: Decoder,
        max_length: int,
        max_rows: int,
        room: RowBudget,
    ) -> list[Translation]:
        """What texts become that are at hand together; `first` is the number of the first one."""
        how, judged = signature(decoder, self.model), self._in_words(decoder)
        done: dict[int, Translation] = {
            i: _nothing(how) for i, text in enumerate(texts) if not text.strip()
        }
        todo = [i for i in range(len(texts)) if i not in done]
        lengths = [len(texts[i]) for i in todo]
        batches = [[todo[i] for i in batch] for batch in _batches(lengths, decoder.rows, max_rows)]
        sources = {
            tuple(batch): self._encoded(texts, batch, first) for batch in batches
        }  # the mistakes come first

        def decoded(batch: Sequence[int]) -> list[list[Hypothesis]]:
            ready = tuple(batch) in sources  # half of one is not
            source = sources.pop(tuple(batch)) if ready else self._encoded(texts, batch, first)
            return decode(
                self.model,
                source,
                judged,
                max_length,
                [stable_hash(texts[i]) for i in batch],
                max_rows,
            )

        for batch in batches:
            found = room.run(decoded, batch, decoder.rows * _weight(len(texts[batch[-1]])))
            written = iter(self._texts([one.tokens for hypotheses in found for one in hypotheses]))
            for i, hypotheses in zip(batch, found, strict=True):
                done[i] = Translation.of(hypotheses, written, how)
        return [done[i] for i in range(len(texts))]

    def score(
        self, texts: Sequence[str], translations: Sequence[str], max_rows: int = 1024
    ) -> list[float]:
        """The clean log-probability of each text's given translation, spelt in symbols as the tokenizer spells it."""
        if self.symbols is None:
            raise InvalidInput(
                f"{name_of(self.model)} cannot score texts: it does not know their symbols"
            )
        texts, translations = _ensure_texts(texts, "score"), _ensure_texts(translations, "score")
        ensure_integer("max_rows", max_rows, 1)
        if len(texts) != len(translations):
            raise InvalidInput(
                f"score takes one translation a text: {len(texts)} texts, {len(translations)} translations"
            )
        scores, targets = (
            [0.0] * len(texts),
            _one_each(self.symbols(translations), len(texts), "symbols"),
        )
        sizes = [len(one) + len(other) for one, other in zip(texts, translations, strict=True)]
        room = RowBudget(max_rows)

        def scored(batch: Sequence[int]) -> list[list[float]]:
            return score(self.model, self._encoded(texts, batch), [[targets[i]] for i in batch])

        for batch in _batches(sizes, 1, max_rows):
            for i, (one,) in zip(
                batch, room.run(scored, batch, _weight(sizes[batch[-1]])), strict=True
            ):
                scores[i] = one
        return scores

    def too_long(self, texts: Sequence[str]) -> dict[int, str]:
        """The places of texts that are longer than allowed, with their sizes: `1,204 symbols`.

        A text of more than `MAX_CHARACTERS_PER_TOKEN` characters for every token allowed is not
        tokenised.
        """
        texts = _ensure_texts(texts, "too_long")
        most = MAX_CHARACTERS_PER_TOKEN * self.longest
        rule = f"characters ({MAX_CHARACTERS_PER_TOKEN} a symbol at most)"
        found = {i: f"{len(text):,} {rule}" for i, text in enumerate(texts) if len(text) > most}
        short = [i for i in range(len(texts)) if i not in found]
        encoded = (
            _one_each(self.encode([texts[i] for i in short]), len(short), "encode") if short else []
        )
        for i, symbols in zip(short, encoded, strict=True):
            if isinstance(symbols, Sized) and len(symbols) > self.longest:
                found[i] = f"{len(symbols):,} symbols"
        return dict(sorted(found.items()))

    def _encoded(self, texts: Sequence[str], batch: Sequence[int], first: int = 1) -> Any:
        """The source of some of the texts, none of them too long; `first` is the number of the first text."""
        most = MAX_CHARACTERS_PER_TOKEN * self.longest
        for i in batch:
            if len(texts[i]) > most:
                share = f"{MAX_CHARACTERS_PER_TOKEN} for each of {self.longest:,} symbols"
                rule = f"{most:,} are allowed, {share}"
                raise InvalidInput(
                    f"text {first + i} has {len(texts[i]):,} characters and {rule}; split it"
                )
        source = _one_each(self.encode([texts[i] for i in batch]), len(batch), "encode")
        for i, one in zip(batch, source, strict=True):
            if isinstance(one, Sized) and len(one) > self.longest:
                raise InvalidInput(
                    f"text {first + i} has {len(one):,} symbols and {self.longest:,} are allowed; split it"
                )
        return source

    def _texts(self, many: list[tuple[int, ...]]) -> list[str]:
        together: Callable[[Any], list[str]] | None = getattr(self.detokenise, "all", None)
        texts = [self.detokenise(one) for one in many] if together is None else together(many)
        for text in texts:
            if not isinstance(text, str):
                raise InvalidInput(f"detokenise must return a text, not {brief(text)}")
        return texts

    def _in_words(self, decoder: Decoder) -> Decoder:
        """MBR compares texts, where there are texts."""
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
    """A translator: `en-de` (English to German, everyday sentences), `toy`, or a folder that `npad train` wrote.

    `hf:NAME_OR_PATH` is a model of Hugging Face with its tokenizer, `hf:NAME:eng_Latn-deu_Latn` one of many languages;
    a decoder-only one goes on with the text.
    `toy` is an exact model of four German phrases: every probability is known. device: "cpu", "cuda", "cuda:1" or
    "auto". precision: of NPAD's noisy chains, "float32", "bfloat16", "float16", or "int8" on a CPU; all else, and every
    score, is in float32.
    """
    ensure_path("name", name)
    ensure_choice("precision", precision, tuple(PRECISIONS))
    device = device_named(device)
    if str(name).startswith("hf:"):
        made = _pretrained(str(name).removeprefix("hf:"), device)
    elif str(name) == "toy":
        made = Translator(toy.model(), list, toy.text, toy.symbols)
    else:
        saved = checkpoint.load(SHIPPED.get(str(name), name), device)
        source, target = saved.subwords
        made = Translator(prepared(saved.model), source.encode, Detokeniser(target), target.encode)
    return (
        made if precision == "float32" else replace(made, model=LowPrecision(made.model, precision))
    )


def _pretrained(name: str, device: str | torch.device) -> Translator:
    from npad.models.huggingface.loading import text_model  # an extra

    model, tokenizer = text_model(name, device)

    def encode(texts: Sequence[str]) -> list[list[int]]:
        return [list(ids) for ids in tokenizer(list(texts))["input_ids"]]

    def symbols(texts: Sequence[str]) -> list[list[int]]:
        ids = tokenizer(text_target=list(texts), add_special_tokens=False)["input_ids"]
        return [list(each) for each in ids]

    def detokenise(tokens: tuple[int, ...]) -> str:
        return str(tokenizer.decode(list(tokens), skip_special_tokens=True)).strip()

    longest = (model.model if isinstance(model, Processed) else model).longest
    return Translator(
        model, encode, detokenise, symbols, **({} if longest is None else {"longest": longest - 1})
    )


def _ensure_texts(texts: Iterable[str], method: str = "translate") -> list[str]:
    """The texts that a method was given, as a list."""
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
        raise InvalidInput(
            f"texts must be texts, one after the other, not {brief(texts)}"
        ) from error


def _one_each(made: Any, texts: int, function: str) -> Any:
    """What a function of a translator made of some texts: one entry a text."""
    count = ensure_length(made, f"what {function} returns")
    if count != texts:
        raise InvalidInput(
            f"{function} must return one sentence a text: it made {count} of {texts}"
        )
    return made


def _nothing(how: str) -> Translation:
    """What a blank text becomes; no model is asked."""
    return Translation("", 0.0, Hypothesis((), 0.0, finished=True), how)


def _batches(lengths: list[int], rows: int, most: int) -> Iterator[list[int]]:
    """Places of texts, those of like length together; a long one counts for more rows."""
    batch: list[int] = []
    for i in sorted(range(len(lengths)), key=lengths.__getitem__):
        if batch and (len(batch) + 1) * rows * _weight(lengths[i]) > most:
            yield batch
            batch = []
        batch.append(i)
    if batch:
        yield batch


def _weight(letters: int) -> int:
    """For how many rows one counts whose text is so long: one more for every 256 letters."""
    return 1 + letters // 256
