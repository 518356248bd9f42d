"""Translate a corpus: units in flight on workers, the output in the order of the input."""

from __future__ import annotations

import os
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import wraps
from itertools import islice
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

from npad.errors import InvalidInput
from npad.pipelines.outputs import Output
from npad.pipelines.pipeline import Prefixed, beginning_with, prefixed, text_of
from npad.pipelines.writers import Writer, as_json, as_text
from npad.scale import formats
from npad.scale.manifest import Manifest, continued
from npad.scale.pool import Workers
from npad.scale.units import Failed, Result, Source, chain_ranges, named_signature, unit_size
from npad.scale.worker import ModelSpec
from npad.search.decoder import Decoder
from npad.search.request import LIMITS, Decoding
from npad.specs import label
from npad.storage.regular import file_digest
from npad.text.files import read_lines
from npad.validation import ensure_choice, ensure_integer

OLD_ARGUMENTS = (
    *("engine", "spec", "decoder", "max_length", "max_rows"),
    *("unit", "chain_parts", "progress", "report"),
)
Translating = TypeVar("Translating", bound=Callable[..., Any])


@dataclass(frozen=True)
class Corpus:
    """What is translated into what.

    Attributes:
        source: a file of lines, JSON lines (`.jsonl`) or a table (`.parquet`).
        output: the file to write; JSON lines and tables have the fields of `as_json`.
        field: the field of the text in JSON lines and tables.
        writer: writes other outputs.
        nbest: hypotheses to write.
        prefixes: a file with what the output of each text begins with.
        tabs: whether that follows each text, after a tab.
        on_error: "skip" reports a text that cannot be translated, and leaves it empty; "fail" stops
            there.
    """

    source: Path
    output: Path
    field: str = "text"
    writer: Writer = as_text
    nbest: int = 1
    on_error: Literal["skip", "fail"] = "skip"
    prefixes: Path | None = None
    tabs: bool = False

    def __post_init__(self) -> None:
        ensure_choice("--on-error", self.on_error, ("skip", "fail"))
        if formats.is_json_lines(self.output) or formats.is_parquet(self.output):
            object.__setattr__(self, "writer", as_json)

    def sources(self) -> Iterator[Source | Failed]:
        """Yield the texts, each with its prefix if it has one."""
        read = prefixed(None if self.prefixes is None else read_lines(self.prefixes), self.tabs)
        for text in formats.read_texts(self.source, self.field):
            source = read("" if isinstance(text, Failed) else text)  # which takes a line of both
            yield text if isinstance(text, Failed) else source

    @property
    def form(self) -> str:
        """Describe the output format."""
        return f"{self.writer.__name__.removeprefix('as_')}, {self.nbest} best"

    @property
    def alternatives(self) -> int | None:
        """Hypotheses that are needed beside the best; None for all."""
        return 0 if self.nbest == 1 else None


@dataclass(frozen=True)
class Summary:
    """The counts of a translated corpus.

    Attributes:
        texts: its size.
        failed: texts without a translation.
        near_ties: texts whose two best hypotheses are within 1e-4: in float32, another size of
            units may return the other one.
        continued: texts that an earlier run had finished.
    """

    texts: int
    failed: int
    near_ties: int
    continued: int


def _takes_a_decoder(translate: Translating) -> Translating:
    """Let `translate_corpus` take an engine, a decoder and limits until npad 0.4, as in 0.2."""

    @wraps(translate)
    def call(corpus: Corpus, *values: Any, **options: Any) -> Any:
        old = dict(zip(OLD_ARGUMENTS, values, strict=False)) | options
        if "engine" not in old or not isinstance(old.get("decoder"), Decoder):
            return translate(corpus, *values, **options)
        message = "translate_corpus takes workers and a Decoding; a decoder works until npad 0.4"
        warnings.warn(message, DeprecationWarning, stacklevel=2)
        limits = {name: old.pop(name) for name in LIMITS if name in old}
        decoding = Decoding(old.pop("decoder"), **limits)
        return translate(corpus, old.pop("engine"), decoding=decoding, **old)

    return cast(Translating, call)


@_takes_a_decoder
def translate_corpus(
    corpus: Corpus,
    workers: Workers,
    spec: ModelSpec,
    decoding: Decoding,
    unit: int | None = None,
    chain_parts: int = 1,
    progress: Callable[[int, int], None] = lambda done, total: None,
    report: Callable[[int, str], None] = lambda line, reason: None,
) -> Summary:
    """Translate a corpus; if an earlier run was cut off, continue after the units it finished.

    Args:
        corpus: the input and the output.
        workers: where to run; they load the model of `spec`.
        spec: the model.
        decoding: the decoder and its limits.
        unit: texts per unit: by default eight batches, or fewer to keep all workers busy. It
            decides memory and speed, not the result.
        chain_parts: parts that NPAD's chains are divided into, each of them a unit.
        progress: called at the beginning and after each unit, with the finished texts, those of
            an earlier run included, and all.
        report: called with the number, from 1, and the reason of each text that fails.

    Raises:
        InvalidInput: an argument breaks its rule, the output was begun with another input, model
            or decoder, or a text fails and `on_error` is "fail".
        StorageError: a file cannot be written.
    """
    chain_ranges(decoding.decoder, chain_parts)  # refuses what cannot be sent or divided
    if unit is not None:
        ensure_integer("unit", unit, 1)
    spec = spec if spec.fingerprint else spec.fingerprinted()
    total = formats.count_texts(corpus.source)
    size = unit or unit_size(decoding, workers.count, total)
    finish = formats.write_parquet if formats.is_parquet(corpus.output) else os.replace
    with continued(corpus.output, _identity(corpus, spec, decoding), total, finish) as manifest:
        begun = manifest.texts
        progress(begun, total)
        writer = _Writer(corpus, manifest, decoding, report)
        texts = writer.reading()
        for result in workers.run(texts, decoding, size, chain_parts, begun, corpus.alternatives):
            writer.write(result)
            progress(manifest.texts, total)
    return Summary(manifest.texts, manifest.failed, manifest.near_ties, begun)


def _identity(corpus: Corpus, spec: ModelSpec, decoding: Decoding) -> dict[str, str]:
    """Return what decides the content of the output."""
    identity = {
        "an input of digest": file_digest(corpus.source),
        "the field": corpus.field,
        "a model of digest": spec.fingerprint or "",
        "precision": spec.precision,
        "the decoder": label(decoding.decoder),
        "max_length": str(decoding.max_length),
        "the constraint": repr(decoding.constraint),
        "the prefixes": _digest_of(corpus),
        "max_source": str(spec.max_source),
        "the format": corpus.form,
    }
    if decoding.min_confidence is not None:
        identity["min_confidence"] = label(decoding.min_confidence)
        identity["the fallback decoder"] = label(decoding.fallback_decoder)
    return identity


def _digest_of(corpus: Corpus) -> str:
    """Return what decides the prefixes of a corpus."""
    return "tabs" if corpus.tabs else file_digest(corpus.prefixes) if corpus.prefixes else ""


@dataclass
class _Writer:
    """Writes the outcomes of texts that it has read and not yet written."""

    corpus: Corpus
    manifest: Manifest
    decoding: Decoding
    report: Callable[[int, str], None]

    def __post_init__(self) -> None:
        self.pending: deque[Source | Failed] = deque()
        self.begun = False

    def reading(self) -> Iterator[Source | Failed]:
        """Yield the texts after the finished ones."""
        for text in islice(self.corpus.sources(), self.manifest.texts, None):
            self.pending.append(text)
            yield text

    def write(self, result: Result) -> None:
        """Write the outcomes of one unit, and then its entry in the manifest."""
        self._ensure_some_succeed(result)
        out, failed = list[str](), 0
        for number, outcome in enumerate(result.outcomes, start=result.first):
            source = self.pending.popleft()
            if isinstance(outcome, Failed):
                failed += 1
                self._fail(number + 1, outcome.reason)
                signed = named_signature(self.decoding, result.model)
                outcome = Output.empty(signed, refused=True)
            if isinstance(source, Prefixed) and self.decoding.min_confidence is None:
                constraint = beginning_with(source.prefix, self.decoding.constraint)
                own = replace(self.decoding, constraint=constraint)  # of all chains together
                outcome = replace(outcome, signature=named_signature(own, result.model))
            text = "" if isinstance(source, Failed) else text_of(source)
            out.append(self.corpus.writer(number, text, outcome, self.corpus.nbest))
        content = "".join(out).encode()
        self.manifest.append(content, len(result.outcomes), failed, result.near_ties)

    def _fail(self, line: int, reason: str) -> None:
        if self.corpus.on_error == "fail":
            raise InvalidInput(f"line {line:,}: {reason}; correct it, or use --on-error skip")
        self.report(line, reason)

    def _ensure_some_succeed(self, result: Result) -> None:
        """Stop if all texts of the first unit fail for one reason: it is not due to the texts."""
        if self.begun:
            return
        self.begun = True
        pairs = zip(self.pending, result.outcomes, strict=False)
        decoded = {
            text: outcome
            for text, outcome in pairs
            if not isinstance(text, Failed) and text_of(text).strip()
        }
        reasons = {o.reason if isinstance(o, Failed) else None for o in decoded.values()}
        if len(decoded) > 1 and len(reasons) == 1 and None not in reasons:
            raise InvalidInput(f"no text can be translated: {reasons.pop()}")
