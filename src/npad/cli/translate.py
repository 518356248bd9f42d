"""npad translate: text in, translations out."""

from __future__ import annotations

import math
import os
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from npad.cli.decoder_options import decodes
from npad.cli.options import (
    DEFAULT_MODEL,
    OUTPUT,
    Device,
    MaxLength,
    MaxRows,
    MaxSource,
    ModelName,
    Precision,
)
from npad.cli.outputs import as_json as write_json
from npad.cli.outputs import as_moses, as_text
from npad.cli.terminal import bar, is_terminal, note
from npad.engine.devices import device_named
from npad.errors import InvalidInput
from npad.pipelines.translation import load
from npad.search.decoder import Decoder
from npad.text.files import open_output, read_lines


@decodes()
def command(
    text: Annotated[
        list[str] | None, typer.Argument(help="Texts to translate; without any, --input or stdin.")
    ] = None,
    input: Annotated[
        Path | None, typer.Option("--input", "-i", help="A file of lines: plain, .gz, .xz, or -.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Where to write, instead of stdout.")
    ] = None,
    model: ModelName = DEFAULT_MODEL,
    device: Device = "auto",
    precision: Precision = "float32",
    nbest: Annotated[
        int,
        typer.Option(
            help="Outputs a text, in Moses' format unless --json.", min=1, rich_help_panel=OUTPUT
        ),
    ] = 1,
    as_json: Annotated[
        bool,
        typer.Option(
            "--json",
            help="One JSON object a text: outputs, scores, signature.",
            rich_help_panel=OUTPUT,
        ),
    ] = False,
    moses: Annotated[
        bool,
        typer.Option(
            "--moses", help="Lines `i ||| text ||| features ||| score`.", rich_help_panel=OUTPUT
        ),
    ] = False,
    max_length: MaxLength = 200,
    max_rows: MaxRows = 1024,
    max_source: MaxSource = 1000,
    window: Annotated[
        int | None,
        typer.Option(
            help="Lines read before their outputs are written; 1 answers each as it comes. "
            "[8 batches of --max-rows; 1 on a terminal]",
            metavar="N",
            min=1,
        ),
    ] = None,
    *,
    decoder: Decoder,
) -> None:
    """Translate texts, a file or standard input, line by line and in order.

    A blank line gives an empty line. The same text gets the same result in any file, at any place.

    Examples:

        npad translate "How do I get to the station?"

        npad translate --decoder npad --chains 50 --sigma 0.3 "How do I get to the station?"

        npad translate --model runs/en-cs -i test.en.xz -o test.cs --decoder npad --inner beam --width 5 -M 10

        cat test.en | npad translate --model runs/en-cs --nbest 5 > nbest.txt
    """
    if text and input is not None:
        raise InvalidInput("give texts or --input, not both")
    if as_json and moses:
        raise InvalidInput("choose one of --json and --moses")
    translator = replace(
        load(model, device_named(device, "--device"), precision), longest=max_source
    )
    write = write_json if as_json else as_moses if moses or nbest > 1 else as_text
    inputs, total = _inputs(text, input)
    files = [] if text else [input or Path("-")]
    if any(map(is_terminal, files)):
        note("reading from the terminal, one text a line; Ctrl-D ends")
        window = window or 1
    read: deque[tuple[str, str | None]] = (
        deque()
    )  # lines still to be written, with their sizes if too long

    def fitting() -> Iterator[str]:
        for line in inputs:
            size = translator.too_long([line]).get(0)
            read.append((line, size))
            yield line if size is None else ""

    skipped = 0
    with open_output(output) as out, bar("translating", total, files) as show:
        for i, one in enumerate(
            translator.stream(fitting(), decoder, max_length, max_rows, window)
        ):
            line, size = read.popleft()
            if size is not None:
                note(
                    f"line {i + 1} has {size}, more than --max-source {max_source:,}; it is left empty"
                )
                skipped += 1
            write(out, i, line, one if size is None else replace(one, log_prob=-math.inf), nbest)
            if not read:  # the next line may be long in coming
                out.flush()
                show("translating", i + 1, total or 0)
    if skipped:
        raise typer.Exit(1)


def _inputs(text: list[str] | None, file: Path | None) -> tuple[Iterator[str], int | None]:
    """The lines, and how many there are if that is known."""
    if text:
        return iter(text), len(text)
    if file is not None and os.path.isfile(file):
        return read_lines(file), sum(1 for _ in read_lines(file))
    return read_lines(file or "-"), None
