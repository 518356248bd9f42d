"""`npad translate --engine`: a corpus, its progress, and what became of it."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

import typer

from npad.cli.placement import Placement
from npad.cli.terminal import SECONDS_PER_NOTE, bar, clock_time, note
from npad.errors import InvalidInput
from npad.pipelines.outputs import Output
from npad.pipelines.writers import Writer, as_json, as_moses, as_text
from npad.scale.corpus import Corpus, translate_corpus
from npad.scale.formats import is_json_lines, is_parquet
from npad.scale.worker import ModelSpec
from npad.search.request import Decoding
from npad.validation import ensure_choice

REPORTED = 20  # lines that failed, before only their number is told


@dataclass(frozen=True)
class OutputForm:
    """What is written for each text."""

    name: str
    write: Writer

    @classmethod
    def chosen(cls, output: Path, json: bool, moses: bool, nbest: int) -> OutputForm:
        """Return the form that the options, or the end of the output's name, choose."""
        if json or is_json_lines(output) or is_parquet(output):
            return cls("json", as_json)
        if moses or nbest > 1:
            return cls("moses", as_moses)
        return cls("text", as_text)

    @classmethod
    def corpus(
        cls,
        source: Path | None,
        output: Path | None,
        json: bool,
        moses: bool,
        nbest: int,
        field: str,
        on_error: str,
    ) -> Corpus:
        """Return a corpus that is written in the chosen form."""
        if source is None or output is None:
            raise InvalidInput("--engine translates a file into a file: give --input and --output")
        form = cls.chosen(output, json, moses, nbest)
        ensure_choice("--on-error", on_error, ("skip", "fail"))

        def write(out: IO[str], number: int, text: str, best: Output) -> None:
            out.write(form.write(number, text, best, nbest))

        return Corpus(
            source,
            output,
            field,
            write,
            form=f"{form.name}, {nbest} best",
            alternatives=0 if nbest == 1 else None,
            on_error=cast(Any, on_error),
        )


def run_corpus(
    where: Placement,
    spec: ModelSpec,
    corpus: Corpus,
    decoding: Decoding,
    unit: int | None,
) -> None:
    """Translate a corpus, with progress and a report of lines that failed on stderr."""
    reports = Reports()
    spec = spec.fingerprinted()
    with where.running(spec) as workers, shown_progress() as progress:
        summary = translate_corpus(
            corpus, workers, spec, decoding, unit, where.chain_parts, progress, reports.add
        )
    if deaths := getattr(workers, "deaths", 0):
        note(f"{deaths:,} workers died meanwhile; what they had was run again")
    if summary.continued:
        note(f"{summary.continued:,} of {summary.texts:,} lines were finished by an earlier run")
    if summary.near_ties:
        note(
            f"{summary.near_ties:,} of {summary.texts:,} lines are near-ties: two hypotheses "
            "within 1e-4; in float32, another --window or --max-rows may choose the other one"
        )
    if summary.failed:
        note(f"{summary.failed:,} of {summary.texts:,} lines were not translated; they are empty")
        raise typer.Exit(1)


class Reports:
    """Reports lines that failed, the first of them one by one."""

    def __init__(self) -> None:
        self.count = 0

    def add(self, line: int, reason: str) -> None:
        self.count += 1
        if self.count <= REPORTED:
            note(f"line {line:,} is left empty: {reason}")
        elif self.count == REPORTED + 1:
            note("further lines that fail are counted only")


class Throughput:
    """Sentences per second of this run, and the time left; an earlier run may have done a part.

    Args:
        clock: the time in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock, self.start = clock, clock()
        self.begun: int | None = None  # sentences that an earlier run finished

    def described(self, done: int, total: int) -> str:
        """Return the progress in words; the first call says what an earlier run finished."""
        self.begun = done if self.begun is None else self.begun
        text = f"{done:,} of {total:,} sentences"
        seconds = self.clock() - self.start
        rate = (done - self.begun) / seconds if seconds > 0 else 0.0
        if not rate:
            return text
        return f"{text}, {rate:,.1f} sentences/s, {clock_time((total - done) / rate)} left"


@contextmanager
def shown_progress() -> Iterator[Callable[[int, int], None]]:
    """Show sentences per second and the time left: as a bar, or as a line now and then."""
    throughput, last = Throughput(), time.monotonic()

    def show_line(done: int, total: int) -> None:
        nonlocal last
        text = throughput.described(done, total)
        if time.monotonic() - last >= SECONDS_PER_NOTE:
            note(text)
            last = time.monotonic()

    if not sys.stderr.isatty():
        yield show_line
        return
    with bar("translating") as update:
        yield lambda done, total: update(throughput.described(done, total), done, total)
