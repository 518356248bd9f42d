"""npad translate: text in, translations out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from npad.cli.decoder_options import decodes
from npad.cli.options import (
    DEFAULT_MODEL,
    OUTPUT,
    AsText,
    Device,
    Json,
    MaxSource,
    ModelName,
    Nbest,
    OutputFile,
    Precision,
    option,
    source_limit,
)
from npad.cli.outputs import DoubtfulFile, doubtful_outputs, write_outputs
from npad.cli.placement import HERE, Field, OnError, Placement, placed, run_corpus
from npad.cli.terminal import bar, is_terminal, note
from npad.constraints.kinds import Prefix, both
from npad.engine.devices import device_named
from npad.errors import InvalidInput, noting_interrupts
from npad.pipelines.loading import load_as
from npad.pipelines.outputs import TooLong
from npad.pipelines.pipeline import prefixed
from npad.pipelines.translation import Translator
from npad.pipelines.writers import as_json, as_moses, as_text
from npad.scale.corpus import Corpus
from npad.scale.worker import ModelSpec
from npad.search.request import Decoding
from npad.text.files import Lines, open_output


@decodes(acts=True)
@placed
def command(
    text: Annotated[
        list[str] | None,
        typer.Argument(
            help="Texts, or files of lines (plain, .gz, .xz, or - for stdin). [stdin]",
            metavar="[TEXT|FILE]…",
        ),
    ] = None,
    input: Annotated[
        Path | None, option("A file of lines, whatever its name.", "--input", "-i")
    ] = None,
    are_texts: AsText = False,
    prefix: Annotated[
        str | None,
        option(
            "What outputs begin with: a text, or a file of lines.",
            metavar="TEXT",
        ),
    ] = None,
    tabs: Annotated[
        bool, option("Lines are a text, a tab and a prefix.", "--tabs", hidden=True)
    ] = False,
    output: OutputFile = None,
    model: ModelName = DEFAULT_MODEL,
    device: Device = "auto",
    precision: Precision = "float32",
    nbest: Nbest = 1,
    json: Json = False,
    moses: Annotated[
        bool,
        option("Lines `i ||| text ||| features ||| score`.", "--moses", panel=OUTPUT, hidden=True),
    ] = False,
    max_source: MaxSource = 1000,
    window: Annotated[
        int | None,
        option(
            "Lines read before their outputs are written; 1 answers line by line. "
            "[8 batches of --max-rows; 1 on a terminal]",
            metavar="N",
            min=1,
            hidden=True,
        ),
    ] = None,
    where: Placement = HERE,
    on_error: OnError = "skip",
    field: Field = "text",
    doubtful: DoubtfulFile = None,
    *,
    decoding: Decoding,
) -> None:
    """Translate texts, files or standard input, line by line.

    An argument is a file if it exists, or looks like the name of a file: no white space, and a
    suffix such as `.txt` or a separator of folders. Everything else is a text. A blank line becomes
    an empty line. A line that is too long is reported, left empty, and makes the exit code 1.

    With --engine, many workers translate a corpus: lines, .jsonl or .parquet. If that is
    interrupted or killed, the same command continues.

    Examples:

        npad translate "How do I get to the station?"

        npad translate --decoder beam --selector length-normalised "How are you?"

        npad translate --decoder npad --chains 50 --sigma 0.5 "How are you?"

        npad translate --prefix "Wie ge" "How are you?"

        npad translate -m runs/en-cs test.en.xz -o test.cs --decoder npad -M 10

        cat test.en | npad translate --model runs/en-cs --nbest 5 > nbest.txt

        npad translate corpus.en -o corpus.de --engine processes --workers 2
    """
    if text and input is not None:
        raise InvalidInput("give texts and files as arguments, or one file with --input, not both")
    if json and moses:
        raise InvalidInput("choose one of --json and --moses")
    inputs = [Lines.of(argument, are_texts) for argument in text or ()]
    inputs = inputs or [Lines(str(input or "-"))]
    files = [lines.argument for lines in inputs if lines.is_file]
    prefixes = None if prefix is None else Lines.of(prefix)
    if prefixes is not None and not prefixes.is_file:
        decoding, prefixes = (
            replace(decoding, constraint=both(Prefix(prefix or ""), decoding.constraint)),
            None,
        )
    if prefixes is not None and tabs:
        raise InvalidInput("choose one of --prefix FILE and --tabs")
    writer = as_json if json else as_moses if moses or nbest > 1 else as_text
    if where.engine is not None:
        spec = ModelSpec(model, device, precision, max_source)
        _ensure_corpus(inputs, output, doubtful is not None)
        beginnings = None if prefixes is None else Path(prefixes.argument)
        corpus = Corpus(
            Path(files[0]),
            cast(Path, output),
            field,
            writer,
            nbest,
            cast(Any, on_error),
            beginnings,
            tabs,
        )
        run_corpus(where, spec, corpus, decoding, window)
        return
    where.ensure_unused(on_error != "skip", field != "text")
    translator = load_as(Translator, model, device_named(device, "--device"), precision)
    translator = translator.limited_to(max_source)
    counts = [lines.count() for lines in inputs]
    total = None if None in counts else sum(filter(None, counts))
    if any(map(is_terminal, files)):
        note("reading from the terminal, one text per line; Ctrl-D ends")
        window = window or 1

    def refuse(line: int, error: InvalidInput) -> None:
        if isinstance(error, TooLong):
            limit = source_limit(translator, max_source)
            note(f"line {line} has {error.size}, more than {limit}; it is left empty")
        else:
            note(f"line {line} is left empty: {error}")

    continuable = files and Path(files[0]).is_file() and output is not None
    way_on = "with --engine local, the same command continues after an interrupt"
    with (
        noting_interrupts(lambda: way_on if continuable else ""),
        open_output(output) as out,
        doubtful_outputs(
            doubtful,
            decoding,
            lambda number, line, found: out.write(writer(number, line, found, nbest)),
        ) as write,
        bar("translating", total, files) as decoded,
    ):
        refused = write_outputs(
            translator,
            chain.from_iterable(inputs),
            decoding,
            write,
            decoded,
            read=prefixed(None if prefixes is None else iter(prefixes), tabs),
            flush=out.flush,
            refuse=refuse,
            window=window,
        )
    if refused:
        raise typer.Exit(1)


def _ensure_corpus(inputs: Sequence[Lines], output: Path | None, listed: bool) -> None:
    """Require what workers can translate.

    Args:
        inputs: files and texts.
        output: the file to write.
        listed: whether doubtful outputs get a file.
    """
    files = [lines.argument for lines in inputs if lines.is_file]
    if output is None or len(files) != 1 or len(inputs) != 1 or files == ["-"]:
        raise InvalidInput("--engine translates a file into a file: give one, and --output")
    if listed:
        raise InvalidInput("--doubtful goes without --engine; --json marks the outputs there")
