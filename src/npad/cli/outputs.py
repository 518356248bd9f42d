"""Decode the sources of a command one after another, and write their outputs."""

from __future__ import annotations

import sys
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path
from typing import Annotated, Any, TypeVar

from npad.cli.options import OUTPUT, option
from npad.cli.terminal import Bar, note
from npad.engine.memory import return_free_memory
from npad.errors import InvalidInput
from npad.pipelines.outputs import Output
from npad.pipelines.pipeline import Pipeline, on_decoded
from npad.pipelines.writers import as_json
from npad.search.request import Decoding
from npad.signatures import signature
from npad.text.files import open_output

SHOWN = 10  # numbers of outputs in a note
OUTPUTS_PER_UPDATE = 1024  # written before the progress bar moves, if more have been read
OUTPUTS_PER_TRIM = 4096  # written before free memory is returned to the system

Name = TypeVar("Name", str, Path)
DoubtfulFile = Annotated[
    Path | None,
    option(
        "File of JSON lines for outputs below --min-confidence, with their alternatives.",
        "--doubtful",
        metavar="FILE",
        panel=OUTPUT,
        hidden=True,
    ),
]


@contextmanager
def doubtful_outputs(
    file: Path | None, decoding: Decoding, write: Callable[[int, Any, Output], object]
) -> Iterator[Callable[[int, Any, Output], None]]:
    """Yield a function that writes every output; note at the end which are doubtful.

    Args:
        file: the doubtful ones are also written to it, with all their alternatives.
        decoding: the request, with the confidence below which an output is doubtful.
        write: writes an output.
    """
    least = decoding.min_confidence
    if file is not None and least is None:
        raise InvalidInput("--doubtful needs --min-confidence, below which outputs are written")
    numbers: list[int] = []
    total = 0
    with nullcontext() if file is None else open_output(file) as out:

        def take(number: int, name: str | Path, output: Output) -> None:
            nonlocal total
            write(number, name, output)
            total += 1
            if output.doubtful:
                numbers.append(number + 1)
                if out is not None:
                    out.write(as_json(number, str(name), output, sys.maxsize))

        yield take
    if numbers:
        written = "" if file is None else f"; they are in {file}"
        note_outputs(numbers, total, f"are below {least:g}", written)


def note_outputs(numbers: Sequence[int], total: int, what: str, more: str = "") -> None:
    """Note the numbers of some of the outputs, and what is true of them."""
    shown = ", ".join(map(str, numbers[:SHOWN])) + (", …" if len(numbers) > SHOWN else "")
    note(f"{len(numbers):,} of {total:,} outputs {what}: {shown}{more}")


def write_outputs(
    pipeline: Pipeline,
    names: Iterable[Name],
    decoding: Decoding,
    write: Callable[[int, Name, Output], object],
    decoded: Bar,
    *,
    read: Callable[[Name], object] = lambda name: name,
    flush: Callable[[], None] = lambda: None,
    refuse: Callable[[int, InvalidInput], None] | None = None,
    window: int | None = None,
) -> int:
    """Decode sources and write the output of each in its place; return how many were refused.

    Args:
        pipeline: the pipeline.
        names: the texts, or the files of the sources.
        decoding: how they are decoded.
        write: called with the number of each source, from 0, its name and its output.
        decoded: the progress, called after every batch.
        read: returns the source by its name.
        flush: called before reading may wait.
        refuse: called with the number, from 1, of each source that cannot be decoded, and why; its
            output is empty. By default that is an error.
        window: sources read before their outputs are written.
    """
    pending: deque[Name] = deque()  # read and not yet written

    def sources() -> Iterator[object]:
        for name in names:
            pending.append(name)
            yield read(name)

    refused = trimmed = done = 0
    lacking: list[int] = []
    stream = pipeline.run(sources(), decoding, window, skip=refuse is not None)
    with on_decoded(decoded.add), closing(stream) as outcomes:
        for done, outcome in enumerate(outcomes, start=1):
            if isinstance(outcome, InvalidInput):
                assert refuse is not None
                refuse(done, outcome)
                refused += 1
                outcome = Output.empty(signature(decoding.decoder, pipeline.model), refused=True)
            if not outcome.hypothesis.met:
                lacking.append(done)
            write(done - 1, pending.popleft(), outcome)
            if not pending or done % OUTPUTS_PER_UPDATE == 0:
                flush()  # reading the next source may block
                decoded.reach(done)
                if done - trimmed >= OUTPUTS_PER_TRIM:
                    return_free_memory()
                    trimmed = done
    if lacking:
        note_outputs(lacking, done, "lack a phrase that a constraint requires")
    return refused


def files_in(folder: Path, inputs: Sequence[Path], suffix: str) -> list[Path]:
    """Return the file in a folder for each input file: its name with another suffix.

    Raises:
        InvalidInput: two inputs would have one file.
    """
    names = [path.stem + suffix for path in inputs]
    name, count = Counter(names).most_common(1)[0]
    if count > 1:
        raise InvalidInput(f"{count} files would be written to {folder / name}: rename")
    return [folder / name for name in names]
