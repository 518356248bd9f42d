"""npad score: log-probabilities of given translations."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from itertools import islice, zip_longest
from typing import Annotated

import typer

from npad.cli.options import (
    DEFAULT_MODEL,
    Device,
    MaxRows,
    MaxSource,
    ModelName,
    OutputFile,
    source_limit,
)
from npad.cli.terminal import bar
from npad.engine.devices import device_named
from npad.errors import InvalidInput
from npad.pipelines.loading import load_as
from npad.pipelines.translation import Translator
from npad.pipelines.writers import finite
from npad.text.files import open_output, read_lines

CHUNK = 1000  # pairs that are read and scored at a time


def command(
    source: Annotated[
        str,
        typer.Argument(help="File of source lines (plain, .gz, .xz, -), or a text with --text."),
    ],
    target: Annotated[
        str, typer.Argument(help="Their translations, line by line, or a text with --text.")
    ],
    model: ModelName = DEFAULT_MODEL,
    text: Annotated[
        bool, typer.Option("--text", "-t", help="SOURCE and TARGET are texts, not files.")
    ] = False,
    output: OutputFile = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per pair.")] = False,
    device: Device = "auto",
    max_rows: MaxRows = 1024,
    max_source: MaxSource = 1000,
) -> None:
    """Print the log-probability of given translations under the clean model.

    One number per pair, end token included.

    Examples:

        npad score --text "How are you?" "Wie geht es dir?"

        npad score test.en test.cs --model runs/en-cs > scores.txt
    """
    if source == target == "-" and not text:
        raise InvalidInput("source and target cannot both be standard input")
    if not text:
        _ensure_files(source, target)
    translator = load_as(Translator, model, device_named(device, "--device"))
    translator = translator.limited_to(max_source)
    pairs = iter([(source, target)]) if text else _pairs(source, target)
    done = 0
    with (
        open_output(output) as out,
        bar("scoring", inputs=[] if text else [source, target]) as progress,
    ):
        while chunk := list(islice(pairs, CHUNK)):
            sources, targets = map(list, zip(*chunk, strict=True))
            caching = translator.caching()
            for i, size in caching.too_long(sources).items():
                limit = source_limit(translator, max_source)
                raise InvalidInput(f"line {done + i + 1} has {size}, more than {limit}")
            scores = caching.score(sources, targets, max_rows)
            for given, translation, score in zip(sources, targets, scores, strict=True):
                record = {"source": given, "target": translation, "log_prob": finite(score)}
                line = json.dumps(record, ensure_ascii=False) if as_json else f"{score:.6f}"
                out.write(f"{line}\n")
            done += len(chunk)
            progress("scoring", done, 0)


def _ensure_files(*paths: str) -> None:
    """Require files, or `-`, and name the option for texts."""
    for path in paths:
        if path != "-" and not os.path.lexists(path):
            raise InvalidInput(
                f"cannot read {path}: No such file; for a text and its translation, add --text"
            )


def _pairs(source: str, target: str) -> Iterator[tuple[str, str]]:
    """Yield the lines of two files in pairs."""
    lines = zip_longest(read_lines(source), read_lines(target))
    for number, (text, translation) in enumerate(lines):
        if text is None or translation is None:
            shorter, longer = (source, target) if text is None else (target, source)
            raise InvalidInput(
                f"{shorter} has {number:,} lines and {longer} has more; line i of both must be a "
                "pair"
            )
        yield text, translation
