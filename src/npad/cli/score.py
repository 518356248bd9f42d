"""npad score: the log-probability of given pairs."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from itertools import islice, zip_longest
from pathlib import Path
from typing import Annotated

import typer

from npad.cli.options import DEFAULT_MODEL, Device, MaxRows, MaxSource, ModelName
from npad.cli.terminal import bar
from npad.engine.devices import device_named
from npad.errors import InvalidInput
from npad.pipelines.translation import load
from npad.text.files import open_output, read_lines

CHUNK = 1000  # pairs at a time


def command(
    source: Annotated[
        str,
        typer.Argument(help="A file of source lines (plain, .gz, .xz, -), or with --text a text."),
    ],
    target: Annotated[
        str, typer.Argument(help="Its translations, line by line, or with --text a text.")
    ],
    model: ModelName = DEFAULT_MODEL,
    text: Annotated[
        bool, typer.Option("--text", "-t", help="SOURCE and TARGET are texts, not files.")
    ] = False,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Where to write, instead of stdout.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a pair.")] = False,
    device: Device = "auto",
    max_rows: MaxRows = 1024,
    max_source: MaxSource = 1000,
) -> None:
    """The log-probability of given translations under the clean model, end symbol included, one a line.

    Examples:

        npad score --text "How are you?" "Wie geht es dir?"

        npad score test.en test.cs --model runs/en-cs > scores.txt
    """
    if source == target == "-" and not text:
        raise InvalidInput("source and target cannot both be standard input")
    translator = replace(load(model, device_named(device, "--device")), longest=max_source)
    pairs = (
        iter([(source, target)]) if text else zip_longest(read_lines(source), read_lines(target))
    )
    done = 0
    with (
        open_output(output) as out,
        bar("scoring", inputs=[] if text else [source, target]) as show,
    ):
        while some := list(islice(pairs, CHUNK)):
            for i, (one, other) in enumerate(some, start=done + 1):
                if one is None or other is None:
                    short, long = (source, target) if one is None else (target, source)
                    raise InvalidInput(
                        f"{short} has {i - 1:,} lines and {long} has more; line i of the two must be a pair"
                    )
            for i, size in translator.too_long([one for one, _ in some]).items():
                raise InvalidInput(
                    f"line {done + i + 1} has {size}, more than --max-source {max_source:,}"
                )
            scores = translator.score(
                [one for one, _ in some], [other for _, other in some], max_rows
            )
            for (one, other), score in zip(some, scores, strict=True):
                record = {
                    "source": one,
                    "target": other,
                    "log_prob": score if math.isfinite(score) else None,
                }
                out.write(
                    (json.dumps(record, ensure_ascii=False) if as_json else f"{score:.6f}") + "\n"
                )
            done += len(some)
            show("scoring", done, 0)
