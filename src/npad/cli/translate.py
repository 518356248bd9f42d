"""npad translate: text in, translations out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from npad.cli.decoder_options import decodes
from npad.cli.options import (
    DEFAULT_MODEL,
    OUTPUT,
    Device,
    Json,
    MaxSource,
    ModelName,
    Nbest,
    OutputFile,
    Precision,
    source_limit,
)
from npad.cli.outputs import write_outputs
from npad.cli.placement import HERE, Field, OnError, Placement, placed, run_corpus
from npad.cli.terminal import counting_bar, is_terminal, note
from npad.engine.devices import device_named
from npad.errors import InvalidInput
from npad.pipelines.loading import load_as
from npad.pipelines.outputs import TooLong
from npad.pipelines.translation import Translator
from npad.pipelines.writers import as_json, as_moses, as_text
from npad.scale.corpus import Corpus
from npad.scale.worker import ModelSpec
from npad.search.request import Decoding
from npad.text.files import open_output, read_lines


@decodes()
@placed
def command(
    text: Annotated[
        list[str] | None,
        typer.Argument(help="Texts to translate; --input or stdin if there are none."),
    ] = None,
    input: Annotated[
        Path | None, typer.Option("--input", "-i", help="A file of lines: plain, .gz, .xz, or -.")
    ] = None,
    output: OutputFile = None,
    model: ModelName = DEFAULT_MODEL,
    device: Device = "auto",
    precision: Precision = "float32",
    nbest: Nbest = 1,
    json: Json = False,
    moses: Annotated[
        bool,
        typer.Option(
            "--moses", help="Lines `i ||| text ||| features ||| score`.", rich_help_panel=OUTPUT
        ),
    ] = False,
    max_source: MaxSource = 1000,
    window: Annotated[
        int | None,
        typer.Option(
            help="Lines read before their outputs are written; 1 answers line by line. "
            "[8 batches of --max-rows; 1 on a terminal]",
            metavar="N",
            min=1,
        ),
    ] = None,
    where: Placement = HERE,
    on_error: OnError = "skip",
    field: Field = "text",
    *,
    decoding: Decoding,
) -> None:
    """Translate texts, a file or standard input, line by line and in order.

    A blank line becomes an empty line. A text's result does not depend on the other lines. A line
    that is too long is reported, left empty in the output, and makes the exit code 1.

    With --engine, --input is a corpus: lines, JSON lines (.jsonl) or a table (.parquet). It is
    translated in units of --window lines by many workers. If the command is interrupted or killed,
    the same command continues.

    Examples:

        npad translate "How do I get to the station?"

        npad translate --decoder beam --selector length-normalised "How do I get to the station?"

        npad translate --decoder npad --chains 50 --sigma 0.3 "How do I get to the station?"

        npad translate -m runs/en-cs -i test.en.xz -o test.cs -d npad --inner beam --width 5 -M 10

        cat test.en | npad translate --model runs/en-cs --nbest 5 > nbest.txt

        npad translate -i corpus.en -o corpus.de --engine ray --address 10.0.0.1:6379 -d npad
    """
    if text and input is not None:
        raise InvalidInput("give texts or --input, not both")
    if json and moses:
        raise InvalidInput("choose one of --json and --moses")
    for path in filter(_is_file, text or ()):
        note(
            f"{path} is a file, but its name is translated; for its lines: npad translate -i {path}"
        )
    writer = as_json if json else as_moses if moses or nbest > 1 else as_text
    if where.engine is not None:
        spec = ModelSpec(model, device, precision, max_source)
        if input is None or output is None:
            raise InvalidInput("--engine translates a file into a file: give --input and --output")
        corpus = Corpus(input, output, field, writer, nbest, cast(Any, on_error))
        run_corpus(where, spec, corpus, decoding, window)
        return
    where.ensure_unused(on_error != "skip", field != "text")
    translator = load_as(Translator, model, device_named(device, "--device"), precision)
    translator = translator.limited_to(max_source)
    lines, total = _lines(text, input)
    files = [] if text else [input or Path("-")]
    if any(map(is_terminal, files)):
        note("reading from the terminal, one text per line; Ctrl-D ends")
        window = window or 1

    def refuse(line: int, error: InvalidInput) -> None:
        if isinstance(error, TooLong):
            limit = source_limit(translator, max_source)
            note(f"line {line} has {error.size}, more than {limit}; it is left empty")

    with (
        _continuable(input, output),
        open_output(output) as out,
        counting_bar("translating", total or 0, files) as decoded,
    ):
        refused = write_outputs(
            translator,
            lines,
            decoding,
            lambda number, line, found: out.write(writer(number, line, found, nbest)),
            decoded,
            flush=out.flush,
            refuse=refuse,
            window=window,
            ahead=total is not None,
        )
    if refused:
        raise typer.Exit(1)


def _lines(text: list[str] | None, file: Path | None) -> tuple[Iterable[str], int | None]:
    """Return the texts, or the lines of a file or standard input, and their number if known."""
    if text:
        return text, len(text)
    if file is not None and file.is_file():
        return read_lines(file), sum(1 for _ in read_lines(file))
    return read_lines(file or "-"), None


@contextmanager
def _continuable(input: Path | None, output: Path | None) -> Iterator[None]:
    """Add to an interrupt how a file can be translated so that an interrupt loses nothing."""
    try:
        yield
    except KeyboardInterrupt as error:
        if input is not None and _is_file(str(input)) and output is not None:
            error.add_note("with --engine local, the same command continues after an interrupt")
        raise


def _is_file(text: str) -> bool:
    """Return whether a text is the path of a file."""
    try:
        return Path(text).is_file()
    except (OSError, ValueError):  # too long for a path, or with a character that none has
        return False
