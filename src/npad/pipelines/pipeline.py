"""One pipeline for texts, recordings and pictures: encode, decode in batches, write as text."""

from __future__ import annotations

import importlib
import sys
import warnings
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache, wraps
from itertools import chain, count, islice
from typing import Any, ClassVar, TypeVar, cast

from npad.constraints.kinds import Constraint, Context, Prefix, both, constrained
from npad.constraints.vocabulary import Vocabulary
from npad.decoding import ensure_found, search
from npad.engine.cost import setting
from npad.engine.memory import RowBudget
from npad.errors import InvalidInput
from npad.hypotheses import Hypothesis
from npad.metrics.chrf import Chrf
from npad.metrics.metric import Metric
from npad.model import Capabilities, Model, ensure_length, name_of
from npad.noise.random import stable_hash
from npad.pipelines.estimates import Estimator
from npad.pipelines.outputs import Output, TooLong
from npad.search.decoder import Decoder
from npad.search.defaults import default_decoder
from npad.search.request import MAX_LENGTH, MAX_ROWS, Decoding
from npad.signatures import signature
from npad.validation import as_list, brief, ensure_callable, ensure_integer

WINDOW_BATCHES = 8  # batches that a stream of texts reads ahead, to group texts of similar length
# Logits of a batch on a CPU. Beyond 32 MiB, glibc asks the system for fresh pages for each tensor:
# greedy search by a model of 32,000 tokens took 3.5 times as long with 512 rows as with 64.
MAX_CPU_LOGITS = 1 << 22
CHARACTERS_PER_ROW = 256  # a text counts as one more row for every so many characters

Method = TypeVar("Method", bound=Callable[..., Any])

_listeners: ContextVar[tuple[Callable[[int], None], ...]] = ContextVar("listeners", default=())


def on_decoded(listener: Callable[[int], None]) -> AbstractContextManager[None]:
    """Call `listener` with the size of every batch that a pipeline decodes inside the block.

    The size is in texts, pictures or whole seconds of sound. Blank, silent and refused sources are
    in no batch.
    """
    return setting(_listeners, (*_listeners.get(), listener))


def report_decoded(size: int) -> None:
    """Call all active listeners with the size of a batch that has been decoded."""
    for listener in _listeners.get():
        listener(size)


@dataclass(eq=False)
class Piece:
    """A part of a source that is decoded at once: a text, a picture, a window of a recording.

    Attributes:
        content: the text, or a tensor of pixels or samples.
        length: characters of a text, by which pieces are sorted before they are batched.
        size: the progress that it means to have decoded it: 1, or the seconds of a window.
        empty: there is nothing to decode, such as in a blank text or in silence.
        start: where it begins in a recording, in seconds.
        end: where it ends.
        outcome: its output, or why it is refused; None until it is decoded.
        submitted: it is in a batch, or need not be.
        prefix: what its output begins with.
        rest: the piece that follows it, if a model has left part of its sound unread.
    """

    content: Any
    length: int = 0
    size: float = 1
    empty: bool = False
    start: float = 0.0
    end: float = 0.0
    outcome: Output | InvalidInput | None = None
    submitted: bool = False
    rest: Piece | None = None
    prefix: str = ""

    @property
    def key(self) -> int:
        """The key of its noise: a hash of its content."""
        text = isinstance(self.content, str)
        return stable_hash(self.content if text else self.content.numpy().tobytes())

    def parts(self) -> Iterator[Piece]:
        """Yield the piece and what follows it."""
        yield self
        if self.rest is not None:
            yield from self.rest.parts()


@dataclass(frozen=True)
class Prefixed:
    """A source whose output begins with a text of its own."""

    source: Any
    prefix: str


def text_of(source: str | Prefixed) -> str:
    """Return the text of a source."""
    return str(source.source) if isinstance(source, Prefixed) else source


@dataclass
class EncodedBatch:
    """Pieces that are decoded together, and the model's source for them."""

    pieces: list[Piece]
    source: Any


class Pipeline(ABC):
    """A model with the functions from sources to its input, and from its tokens to text.

    Batches, long and empty sources, progress and the order of outputs are the same for all media:
    `Translator` reads texts, `Transcriber` recordings, `Captioner` pictures. The noise of a source
    depends on its content alone, not on its neighbours.

    Attributes:
        model: the model that decodes and scores.
        detokenise: maps a hypothesis' tokens to text. If it has a method `all` that maps many
            hypotheses at once, that is called instead.
        confidence: returns the quality to expect of a best hypothesis, or None; a `Confidence` may
            also read the other candidates.
    """

    model: Model[Any]
    detokenise: Callable[[tuple[int, ...]], str]
    confidence: Callable[[Hypothesis], float | None] | None = None

    medium: ClassVar[str]  # what a source is called in messages
    encoder: ClassVar[str] = "encode"  # the field that maps pieces to the model's source
    max_length: ClassVar[int] = MAX_LENGTH  # defaults of `decode`
    max_rows: ClassVar[int] = MAX_ROWS
    measure: ClassVar[Metric] = Chrf()  # the metric of an output that a confidence expects
    largest: ClassVar[int] = sys.maxsize  # pieces of a batch

    def __post_init__(self) -> None:
        rule = f"a function from {self.medium}s to the model's source"
        ensure_callable(self.encoder, getattr(self, self.encoder), rule)
        ensure_callable("detokenise", self.detokenise, "a function from tokens to text")

    def decode(
        self,
        sources: Iterable[Any],
        decoder: Decoder | None = None,
        max_length: int | None = None,
        max_rows: int | None = None,
        constraint: Constraint | None = None,
        prefixes: Sequence[str] | None = None,
    ) -> list[Output]:
        """Decode sources and return their outputs in the same order.

        Args:
            sources: the texts, recordings or pictures.
            decoder: the search; by default `Beam(5)`, in which outputs cut at `max_length` compete
                with finished ones if the model continues texts.
            max_length: tokens that an output may have, its end token included; by default 200, of
                captions 40.
            max_rows: rows (sources × chains × beams) decoded at a time, fewer if sources are long
                or memory is short; it decides memory and speed, not the result. 1,024 by default,
                of recordings 256.
            constraint: what every output must satisfy, such as `Without("Handy")`.
            prefixes: what the output of each source begins with.

        Raises:
            InvalidInput: a source cannot be decoded, an argument breaks its rule, or no output
                satisfies the constraint.
        """
        sources, window = self._all(sources)
        if prefixes is not None:
            sources = with_prefixes(list(sources), prefixes, self.medium)
        return list(self.stream(sources, decoder, max_length, max_rows, window, constraint))

    def stream(
        self,
        sources: Iterable[Any],
        decoder: Decoder | None = None,
        max_length: int | None = None,
        max_rows: int | None = None,
        window: int | None = None,
        constraint: Constraint | None = None,
    ) -> Generator[Output, None, None]:
        """Decode sources as they arrive, in order, with one window of them in memory at a time.

        Args:
            sources: an iterable, which may be endless. `npad.pipelines.Prefixed(source, prefix)` is
                a source whose output begins with a text.
            decoder: as in `decode`.
            max_length: as in `decode`.
            max_rows: as in `decode`.
            window: sources read before their outputs are yielded; by default texts for eight
                batches, pictures for one, and recordings one by one. It decides memory, speed and
                latency, not the result.
            constraint: as in `decode`.

        Raises:
            InvalidInput: a source cannot be decoded, an argument breaks its rule, or no output
                satisfies the constraint.
        """
        decoding = self._decoding(decoder, max_length, max_rows, constraint)
        return cast("Generator[Output, None, None]", self.run(sources, decoding, window))

    def stream_or_skip(
        self,
        sources: Iterable[Any],
        decoder: Decoder | None = None,
        max_length: int | None = None,
        max_rows: int | None = None,
        window: int | None = None,
        constraint: Constraint | None = None,
    ) -> Generator[Output | InvalidInput, None, None]:
        """Decode as `stream` does, but yield an error for each source that cannot be decoded.

        It is a `TooLong` for a text over the limit, and says what is wrong with a file.
        """
        decoding = self._decoding(decoder, max_length, max_rows, constraint)
        return self.run(sources, decoding, window, skip=True)

    def run(
        self,
        sources: Iterable[Any],
        decoding: Decoding,
        window: int | None = None,
        skip: bool = False,
    ) -> Generator[Output | InvalidInput, None, None]:
        """Decode as `stream` does, or as `stream_or_skip` if `skip`, by one request.

        The arguments are checked at once; sources are read when the first output is asked for.
        """
        window = self._window(decoding) if window is None else window
        ensure_integer("window", window, 1)
        if isinstance(sources, str | bytes):
            raise InvalidInput(
                f"stream takes an iterable of {self.medium}s; write stream([{brief(sources)}])"
            )
        try:
            iterator = iter(sources)
        except TypeError as error:
            rule = f"an iterable of {self.medium}s"
            raise InvalidInput(f"{self.medium}s must be {rule}, not {brief(sources)}") from error
        return self._outcomes(iterator, decoding, window, skip)

    def _outcomes(
        self, sources: Iterator[Any], decoding: Decoding, window: int, skip: bool
    ) -> Generator[Output | InvalidInput, None, None]:
        """Yield the outcome of each source."""
        signed = signature(decoding.decoder, self.model, decoding.constraint)
        run = Run(self, decoding, signed)
        for batches, done in run.encode_all(sources, window, skip):
            for batch in batches:
                run.decode(batch)
            run.decode_again([piece for batch in batches for piece in batch.pieces])
            for pieces in done:
                parts = [part for piece in pieces for part in piece.parts()]
                refusals = (p.outcome for p in parts if isinstance(p.outcome, InvalidInput))
                if (refusal := next(refusals, None)) is not None and not skip:
                    raise refusal
                yield refusal or self._joined(parts, signed)

    # How media differ

    @abstractmethod
    def _read(self, source: Any, number: int) -> list[Piece]:
        """Return the pieces of a source; one whose `outcome` is an error if it is refused.

        Raises:
            InvalidInput: it is not a source at all.
        """

    @abstractmethod
    def _all(self, sources: Iterable[Any]) -> tuple[Iterable[Any], int | None]:
        """Return the sources of `decode`, checked if they are a list, and their window."""

    @abstractmethod
    def _window(self, decoding: Decoding) -> int:
        """Return how many sources are read before their outputs are yielded, by default."""

    def _encode(self, pieces: list[Piece]) -> tuple[list[Piece], Any]:
        """Return the pieces that can be decoded, and the model's source for them.

        The `outcome` of the others is set.
        """
        return pieces, self._encoded([piece.content for piece in pieces])

    def _batches(
        self, waiting: list[Piece], decoding: Decoding, last: bool
    ) -> Iterator[list[Piece]]:
        """Take batches out of the pieces that wait; `last`: no more sources follow."""
        pieces, waiting[:] = waiting[:], []
        lengths = [piece.length for piece in pieces]
        rows, max_rows = decoding.decoder.rows, min(decoding.max_rows, self._quick_rows)
        for batch in batches_by_length(lengths, rows, max_rows, self.largest):
            yield [pieces[index] for index in batch]

    @property
    def _quick_rows(self) -> int:
        """Rows whose logits a CPU allocates without asking the system for fresh pages."""
        capabilities = Capabilities.of(self.model)
        if capabilities.device.type != "cpu" or capabilities.vocabulary is None:
            return sys.maxsize
        return max(1, MAX_CPU_LOGITS // capabilities.vocabulary)

    def _rests(self, batch: EncodedBatch, run: Run) -> list[Piece]:
        """Return pieces that are decoded again since the model has left a part of them unread."""
        return []

    def _joined(self, pieces: list[Piece], signed: str) -> Output:
        """Return the output of a source from those of its pieces."""
        (piece,) = pieces
        return cast(Output, piece.outcome)

    def _search(self, decoder: Decoder) -> Decoder:
        """Return the decoder with the functions from tokens to text that it needs."""
        return decoder.with_texts(
            lambda tokens: self.comparable(self.detokenise(tokens)), self.detokenise
        )

    def estimator(self, decoding: Decoding | None = None) -> Estimator:
        """Return what estimates the quality of the outputs of a request, or of given outputs.

        Raises:
            InvalidInput: the request has a `min_confidence`, and the model no confidence.
        """
        if decoding is None:
            return Estimator(self.confidence, self.comparable)
        return Estimator(
            self.confidence, self.comparable, decoding.decoder, decoding.min_confidence
        )

    def comparable(self, text: str) -> str:
        """Return the form of a text in which outputs and references are compared."""
        return text

    @property
    def vocabulary(self) -> Vocabulary | None:
        """What the model's tokens write, by which constraints on text are compiled."""
        return vocabulary_of(self.detokenise)

    def constrained(
        self, sources: Sequence[Any], prefixes: Sequence[str], constraint: Constraint | None
    ) -> Model[Any]:
        """Return the model under a constraint, and under the prefixes of these sources.

        Raises:
            InvalidInput: there is something to enforce, and nobody knows what tokens write.
        """
        if constraint is None and not any(prefixes):
            return self.model
        if self.vocabulary is None:
            rule = "a constraint on texts needs to know what its tokens write"
            way = "give its translator a `detokenise` with a method `vocabulary`"
            raise InvalidInput(f"{name_of(self.model)} cannot be constrained: {rule}; {way}")
        texts = [source if isinstance(source, str) else "" for source in sources]
        context = Context(self.vocabulary, texts, prefixes)
        return cast("Model[Any]", constrained(self.model, constraint, context))

    def _decoding(
        self,
        decoder: Decoder | None,
        length: int | None,
        rows: int | None,
        constraint: Constraint | None,
    ) -> Decoding:
        """Return a request with this pipeline's defaults for what is None."""
        return Decoding(
            default_decoder(self.model) if decoder is None else decoder,
            self.max_length if length is None else length,
            self.max_rows if rows is None else rows,
            constraint,
        )

    def _encoded(self, contents: list[Any]) -> Any:
        """Return the model's source for the contents of pieces, one entry each."""
        if not contents:
            return []
        source = getattr(self, self.encoder)(contents)
        return ensure_count(source, len(contents), self.encoder, self.medium)

    def _texts(self, outputs: list[tuple[int, ...]]) -> list[str]:
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


@cache
def vocabulary_of(detokenise: Any) -> Vocabulary | None:
    """Return what a model's tokens write, if the function from tokens to text knows."""
    known: Callable[[], Vocabulary] | None = getattr(detokenise, "vocabulary", None)
    return None if known is None else known()


def beginning_with(prefix: str, constraint: Constraint | None) -> Constraint | None:
    """Return the constraint of an output that also begins with a prefix, if that is not empty."""
    return both(Prefix(prefix) if prefix else None, constraint)


def with_prefixes(sources: list[Any], prefixes: Sequence[str], medium: str) -> list[Prefixed]:
    """Return sources with the text that the output of each begins with."""
    rule = f"one text per {medium}, {len(sources)} in all"
    texts = as_list("prefixes", prefixes, rule)
    if len(texts) != len(sources) or not all(isinstance(text, str) for text in texts):
        raise InvalidInput(f"prefixes must be {rule}, not {brief(prefixes)}")
    return [Prefixed(*pair) for pair in zip(sources, texts, strict=True)]


def prefixed(prefixes: Iterator[str] | None, tabs: bool) -> Callable[[str], str | Prefixed]:
    """Return a function from a line to its source, which has a prefix from another file or line.

    Args:
        prefixes: the lines of the file; None without one.
        tabs: prefixes follow a tab.
    """
    if prefixes is None and not tabs:
        return lambda line: line

    def source(line: str) -> str | Prefixed:
        text, _, prefix = (
            line.partition("\t") if tabs else (line, "", next(prefixes or iter(()), None))
        )
        if prefix is None:
            raise InvalidInput("--prefix has fewer lines than there are texts; give one for each")
        return Prefixed(text, prefix) if prefix else text

    return source


def also_named(name: str, method: Method) -> Method:
    """Return a method of a pipeline that also takes its sources by the keyword `name`."""

    @wraps(method)
    def named(*values: Any, **options: Any) -> Any:
        if name in options and "sources" not in options:
            options["sources"] = options.pop(name)
        return method(*values, **options)

    return cast(Method, named)


def moved_load(module: str) -> Callable[[str], Any]:
    """Return a module's `__getattr__` in which `npad.load` has its old place, until npad 0.4."""

    def find(name: str) -> Any:
        if name != "load":
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        message = f"{module}.load is now npad.load; the old name will be removed in npad 0.4"
        warnings.warn(message, DeprecationWarning, stacklevel=2)
        return importlib.import_module("npad").load

    return find


def batches_by_length(
    lengths: Sequence[int], rows: int, max_rows: int, largest: int = sys.maxsize
) -> Iterator[list[int]]:
    """Yield the indices of pieces in batches of similar length, shortest first.

    Args:
        lengths: characters of the pieces, if they are texts.
        rows: rows that a short piece takes.
        max_rows: rows that a batch may take; a long text counts for more.
        largest: pieces that a batch may have.
    """
    batch: list[int] = []
    for index in sorted(range(len(lengths)), key=lengths.__getitem__):
        taken = (len(batch) + 1) * rows * row_weight(lengths[index])
        if batch and (taken > max_rows or len(batch) == largest):
            yield batch
            batch = []
        batch.append(index)
    if batch:
        yield batch


def part_of(source: Any, places: Sequence[int], total: int) -> Any:
    """Return the source of consecutive places of `total`."""
    return source if len(places) == total else source[places[0] : places[-1] + 1]


def row_weight(characters: int) -> int:
    """Return how many rows of short texts one text of this length counts for."""
    return 1 + characters // CHARACTERS_PER_ROW


def ensure_count(entries: Any, sources: int, function: str, medium: str) -> Any:
    """Require that a function of a pipeline returned one entry per source."""
    count = ensure_length(entries, f"what {function} returns")
    if count != sources:
        raise InvalidInput(
            f"{function} must return one entry per {medium}: it returned {count} for {sources}"
        )
    return entries


@dataclass
class Run:
    """One stream through a pipeline."""

    pipeline: Pipeline
    decoding: Decoding
    signed: str

    def __post_init__(self) -> None:
        self.budget = RowBudget(self.decoding.max_rows)
        self.estimator = self.pipeline.estimator(self.decoding)
        self.decoder = self.pipeline._search(self.decoding.decoder)

    def encode_all(
        self, sources: Iterator[Any], window: int, skip: bool
    ) -> Iterator[tuple[list[EncodedBatch], list[list[Piece]]]]:
        """Read and encode window after window, as they are asked for.

        Yields the batches of a window, and the sources that are done once these are decoded.
        """
        numbers, number, last = count(1), 0, False
        pending: deque[list[Piece]] = deque()  # sources that are not done
        waiting: list[Piece] = []  # pieces that are in no batch
        while not last:
            read = zip(islice(sources, window), numbers, strict=False)
            group = [self.read(source, place) for source, place in read]
            last = not group
            pending.extend(group)
            for piece in chain.from_iterable(group):
                if piece.empty:
                    piece.outcome = Output.empty(self.signed)
                piece.submitted = piece.outcome is not None
                waiting += [] if piece.submitted else [piece]
            batches, done = [], []
            for pieces in self.pipeline._batches(waiting, self.decoding, last):
                if (batch := self.encode(pieces)) is not None:
                    batches.append(batch)
                    waiting += self.pipeline._rests(batch, self)
            while pending and all(part.submitted for p in pending[0] for part in p.parts()):
                number += 1
                done.append(pending.popleft())
                for error in (piece.outcome for piece in done[-1]):
                    if isinstance(error, InvalidInput) and not skip:
                        subject = f"{self.pipeline.medium} {number}"
                        raise error.about(subject) if isinstance(error, TooLong) else error
            if batches or done:
                yield batches, done

    def read(self, source: Any, number: int) -> list[Piece]:
        """Return the pieces of a source, which may have a prefix."""
        if not isinstance(source, Prefixed):
            return self.pipeline._read(source, number)
        pieces = self.pipeline._read(source.source, number)
        for piece in pieces[:1]:
            piece.prefix = source.prefix
            try:
                self.pipeline.constrained([piece.content], [piece.prefix], None)
            except InvalidInput as error:
                piece.outcome = error
        return pieces

    def encode(self, pieces: list[Piece]) -> EncodedBatch | None:
        """Return pieces that can be decoded, if any, as one batch."""
        kept, source = self.pipeline._encode(pieces)
        for piece in pieces:
            piece.submitted = True
        return EncodedBatch(kept, source) if kept else None

    def decode(self, batch: EncodedBatch) -> None:
        """Decode a batch, unless that is done, and set the outcomes of its pieces."""
        kept, source = batch.pieces, batch.source
        decoder, max_length = self.decoder, self.decoding.max_length
        max_rows = self.decoding.max_rows
        if kept[0].outcome is not None:
            return

        def decode_part(places: Sequence[int]) -> list[list[Hypothesis]]:
            own, part = kept[places[0] : places[-1] + 1], part_of(source, places, len(kept))
            ids = [piece.key for piece in own]
            contents, prefixes = zip(*((piece.content, piece.prefix) for piece in own), strict=True)
            model = self.pipeline.constrained(contents, prefixes, self.decoding.constraint)
            decoded = search(model, part, decoder, max_length, ids, max_rows)
            report_decoded(round(sum(piece.size for piece in own)))
            return decoded

        rows = decoder.rows * row_weight(kept[-1].length)
        self.finish(kept, self.budget.run(decode_part, range(len(kept)), rows))

    def finish(self, pieces: list[Piece], decoded: list[list[Hypothesis]]) -> None:
        """Set the outcomes of pieces that have been decoded."""
        outputs = [hypothesis.tokens for hypotheses in decoded for hypothesis in hypotheses]
        texts = iter(self.pipeline._texts(outputs))
        decoder, max_length = self.decoding.decoder, self.decoding.max_length
        for piece, hypotheses in zip(pieces, decoded, strict=True):
            own = [next(texts) for _ in hypotheses]
            constraint = beginning_with(piece.prefix, self.decoding.constraint)
            subject = f"{self.pipeline.medium} {brief(piece.content)}"
            try:
                ensure_found(str(constraint), decoder, max_length, hypotheses, subject)
            except InvalidInput as error:
                piece.outcome = error
                continue
            signed = self.signed
            if piece.prefix:
                signed = signature(decoder, self.pipeline.model, constraint)
            piece.outcome = self.estimator.output(hypotheses, own, signed)

    def decode_again(self, pieces: list[Piece]) -> None:
        """Decode the pieces of doubtful outputs by the request's fallback, if it has one."""
        fallback = self.decoding.fallback
        waiting = [p for p in pieces if isinstance(p.outcome, Output) and p.outcome.doubtful]
        if fallback is None or not waiting:
            return
        signed = signature(fallback.decoder, self.pipeline.model, fallback.constraint)
        run = Run(self.pipeline, fallback, signed)
        for piece in waiting:
            piece.outcome, piece.size = None, 0  # its progress has been reported
        while waiting:
            for part in self.pipeline._batches(waiting, fallback, last=True):
                if (batch := run.encode(part)) is not None:
                    waiting += self.pipeline._rests(batch, run)
                    run.decode(batch)
