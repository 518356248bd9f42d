"""npad score: log-probabilities of given translations."""

from __future__ import annotations

import json
import math
import os
from itertools import islice, zip_longest
from pathlib import Path
from typing import Annotated

import typer

from npad.cli.options import (
    DEFAULT_MODEL,
    Device,
    MaxRows,
    MaxSource,
    ModelName,
    source_limit,
)
from npad.cli.terminal import bar
from npad.engine.devices import device_named
from npad.errors import InvalidInput
from npad.pipelines.loading import load
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
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File to write instead of stdout.")
    ] = None,
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
    translator = load(model, device_named(device, "--device")).limited_to(max_source)
    lines = (
        iter([(source, target)]) if text else zip_longest(read_lines(source), read_lines(target))
    )
    done = 0
    with (
        open_output(output) as out,
        bar("scoring", inputs=[] if text else [source, target]) as progress,
    ):
        while chunk := list(islice(lines, CHUNK)):
            pairs = _ensure_pairs(chunk, (source, target), done)
            sources, targets = ([pair[side] for pair in pairs] for side in (0, 1))
            caching = translator.caching()
            for i, size in caching.too_long(sources).items():
                limit = source_limit(translator, max_source)
                raise InvalidInput(f"line {done + i + 1} has {size}, more than {limit}")
            for pair, log_prob in zip(
                pairs, caching.score(sources, targets, max_rows), strict=True
            ):
                out.write((_record(*pair, log_prob) if as_json else f"{log_prob:.6f}") + "\n")
            done += len(pairs)
            progress("scoring", done, 0)


def _ensure_files(*paths: str) -> None:
    """Require files, or `-`, and name the option for texts."""
    for path in paths:
        if path != "-" and not os.path.lexists(path):
            raise InvalidInput(
                f"cannot read {path}: No such file; for a text and its translation, add --text"
            )


def _ensure_pairs(
    chunk: list[tuple[str | None, str | None]], names: tuple[str, str], done: int
) -> list[tuple[str, str]]:
    """Require a source and a target on every line; `done` lines came before these."""
    pairs = []
    for line, (source, target) in enumerate(chunk, start=done):
        if source is None or target is None:
            shorter, longer = names if source is None else reversed(names)
            raise InvalidInput(
                f"{shorter} has {line:,} lines and {longer} has more; line i of both must be a pair"
            )
        pairs.append((source, target))
    return pairs


def _record(source: str, target: str, log_prob: float) -> str:
    """Return a pair as one JSON object."""
    finite = log_prob if math.isfinite(log_prob) else None
    record = {"source": source, "target": target, "log_prob": finite}
    return json.dumps(record, ensure_ascii=False)
