"""Translate a corpus: units in flight on an engine, the output in the order of the input."""

from __future__ import annotations

import io
import math
import os
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO, Literal

from npad.errors import InvalidInput
from npad.pipelines.outputs import Translation
from npad.scale import chains, formats
from npad.scale.engine import Engine
from npad.scale.manifest import Manifest, continued
from npad.scale.units import Failed, Result, Task, chain_ranges
from npad.scale.worker import ModelSpec
from npad.search.decoder import Decoder
from npad.search.hypotheses import Hypothesis
from npad.signatures import signature
from npad.validation import ensure_choice, ensure_integer

Write = Callable[[IO[str], int, str, Translation], None]  # (file, number from 0, source, output)


def write_line(out: IO[str], number: int, source: str, best: Translation) -> None:
    """Write the best translation on one line."""
    out.write(" ".join(best.text.splitlines()) + "\n")


@dataclass(frozen=True)
class Corpus:
    """What is translated into what.

    Attributes:
        source: a file of lines, JSON lines (`.jsonl`) or a table (`.parquet`).
        output: the file to write; `.parquet` is made of JSON lines, which `write` must write.
        field: the field of the text in JSON lines and tables.
        write: writes one translation; `form` must differ where it writes something else.
        form: a name for what `write` writes.
        alternatives: hypotheses that `write` needs beside the best; None for all.
        on_error: "skip" reports a text that cannot be translated, and leaves it empty; "fail" stops
            there.
    """

    source: Path
    output: Path
    field: str = "text"
    write: Write = write_line
    form: str = "text"
    alternatives: int | None = 0
    on_error: Literal["skip", "fail"] = "skip"

    def __post_init__(self) -> None:
        ensure_choice("on_error", self.on_error, ("skip", "fail"))


@dataclass(frozen=True)
class Summary:
    """What came of a corpus.

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


def translate_corpus(
    corpus: Corpus,
    engine: Engine,
    spec: ModelSpec,
    decoder: Decoder,
    max_length: int = 200,
    max_rows: int = 1024,
    unit: int | None = None,
    chain_parts: int = 1,
    progress: Callable[[int, int], None] = lambda done, total: None,
    report: Callable[[int, str], None] = lambda line, reason: None,
) -> Summary:
    """Translate a corpus; if an earlier run was cut off, continue after the units it finished.

    Args:
        corpus: the input and the output.
        engine: where to run; its workers load the model of `spec`.
        spec: the model.
        decoder: the search.
        max_length: as `Translator.translate`.
        max_rows: as `Translator.translate`.
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
    task = Task.of(
        decoder, max_length=max_length, max_rows=max_rows, alternatives=corpus.alternatives
    )
    chain_ranges(decoder, chain_parts)  # refuses what cannot be divided
    if unit is not None:
        ensure_integer("unit", unit, 1)
    spec = spec if spec.fingerprint else spec.fingerprinted()
    total = formats.count_texts(corpus.source)
    size = unit or task.unit_size(engine.workers, total)
    finish = formats.write_parquet if formats.is_parquet(corpus.output) else os.replace
    with continued(corpus.output, _identity(corpus, spec, task), finish) as manifest:
        run = _Run(corpus, manifest, decoder, report)
        begun = manifest.texts
        progress(begun, total)
        results = chains.run(engine, run.read(), task, size, chain_parts, begun)
        for result in results:
            run.write(result)
            progress(manifest.texts, total)
    return Summary(manifest.texts, manifest.failed, manifest.near_ties, begun)


def _identity(corpus: Corpus, spec: ModelSpec, task: Task) -> dict[str, str]:
    """Return what decides the content of the output."""
    return {
        "an input of digest": formats.digest(corpus.source),
        "the field": corpus.field,
        "a model of digest": spec.fingerprint or "",
        "precision": spec.precision,
        "the decoder": task.decoder,
        "max_length": str(task.max_length),
        "max_source": str(spec.max_source),
        "the format": corpus.form,
    }


class _Run:
    """The texts that were read and not yet written, and the way to write them."""

    def __init__(
        self,
        corpus: Corpus,
        manifest: Manifest,
        decoder: Decoder,
        report: Callable[[int, str], None],
    ) -> None:
        self.corpus, self.manifest, self.decoder, self.report = corpus, manifest, decoder, report
        self.pending: deque[str | Failed] = deque()
        self.begun = False

    def read(self) -> Iterator[str | Failed]:
        """Yield the texts after the finished ones."""
        texts = formats.read_texts(self.corpus.source, self.corpus.field)
        for text in islice(texts, self.manifest.texts, None):
            self.pending.append(text)
            yield text

    def write(self, result: Result) -> None:
        """Write the outcomes of one unit, and then its entry in the manifest."""
        self._ensure_some_succeed(result)
        out, failed = io.StringIO(newline=""), 0
        for number, outcome in enumerate(result.outcomes, start=result.first):
            source = self.pending.popleft()
            if isinstance(outcome, Failed):
                failed += 1
                self._fail(number + 1, outcome.reason)
                outcome = _untranslated(signature(self.decoder, chains.Named(result.model)))
            self.corpus.write(out, number, source if isinstance(source, str) else "", outcome)
        content = out.getvalue().encode()
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
            text: outcome for text, outcome in pairs if isinstance(text, str) and text.strip()
        }
        reasons = {o.reason if isinstance(o, Failed) else None for o in decoded.values()}
        if len(decoded) > 1 and len(reasons) == 1 and None not in reasons:
            raise InvalidInput(f"no text can be translated: {reasons.pop()}")


def _untranslated(signed: str) -> Translation:
    """Return the empty output of a text that failed; −inf tells it from a blank text's."""
    return Translation("", -math.inf, Hypothesis((), 0.0, finished=True), signed)
