"""npad score: log-probabilities of given translations."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice, zip_longest
from typing import Annotated

import typer

from npad.cli.options import (
    DEFAULT_MODEL,
    AsText,
    Device,
    MaxRows,
    MaxSource,
    ModelName,
    OutputFile,
    option,
    source_limit,
)
from npad.cli.terminal import bar
from npad.engine.devices import device_named
from npad.errors import InvalidInput
from npad.pipelines.loading import load_as
from npad.pipelines.translation import Translator
from npad.pipelines.writers import finite
from npad.text.files import Lines, open_output
from npad.validation import counted

CHUNK = 1000  # pairs that are read and scored at a time


def command(
    source: Annotated[
        str, typer.Argument(help="A text, or a file of source lines: plain, .gz, .xz, or -.")
    ],
    target: Annotated[
        str, typer.Argument(help="Its translation, or a file of translations, line by line.")
    ],
    model: ModelName = DEFAULT_MODEL,
    are_texts: AsText = False,
    output: OutputFile = None,
    as_json: Annotated[bool, option("One JSON object per pair.", "--json")] = False,
    device: Device = "auto",
    max_rows: MaxRows = 1024,
    max_source: MaxSource = 1000,
) -> None:
    """Print the log-probability of given translations.

    One number per pair, under the clean model, end token included.

    Examples:

        npad score "How are you?" "Wie geht es dir?"

        npad score test.en test.cs --model runs/en-cs > scores.txt
    """
    sides = [Lines.of(argument, are_texts) for argument in (source, target)]
    files = [side.argument for side in sides if side.is_file]
    if files == ["-", "-"]:
        raise InvalidInput("source and target cannot both be standard input")
    translator = load_as(Translator, model, device_named(device, "--device"))
    translator = translator.limited_to(max_source)
    pairs, done = _pairs(*sides), 0
    with open_output(output) as out, bar("scoring", inputs=files) as progress:
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


def _pairs(source: Lines, target: Lines) -> Iterator[tuple[str, str]]:
    """Yield the lines of source and target in pairs."""
    lines = zip_longest(source, target)
    for number, (text, translation) in enumerate(lines):
        if text is None or translation is None:
            shorter, longer = (source, target) if text is None else (target, source)
            raise InvalidInput(
                f"{shorter} has {counted(number, 'line')} and {longer} has more; line i of both "
                "must be a pair"
            )
        yield text, translation
