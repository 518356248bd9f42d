"""npad calibrate: the σ₀ for a model."""

from __future__ import annotations

import json
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from npad.cli.decoder_options import decodes
from npad.cli.options import (
    DEFAULT_MODEL,
    OUTPUT,
    Device,
    MaxLength,
    MaxRows,
    ModelName,
    Precision,
)
from npad.cli.terminal import bar, console
from npad.engine.devices import device_named
from npad.errors import InvalidInput
from npad.experiments.calibrate import GRID, calibrate
from npad.pipelines.translation import load
from npad.search.decoder import Decoder
from npad.search.npad import NPAD
from npad.text.files import read_lines


@decodes("npad")
def command(
    source: Annotated[
        Path, typer.Argument(help="Sentences like those to come: plain, .gz, .xz, or -.")
    ],
    model: ModelName = DEFAULT_MODEL,
    calls: Annotated[
        int, typer.Option(help="Model calls to spend, re-scoring included, about.", min=1)
    ] = 500_000,
    sigmas: Annotated[str, typer.Option(help="The σ₀ to choose from.")] = ",".join(
        f"{sigma:g}" for sigma in GRID
    ),
    device: Device = "auto",
    precision: Precision = "float32",
    as_json: Annotated[
        bool, typer.Option("--json", help="The trials as one JSON object.", rich_help_panel=OUTPUT)
    ] = False,
    max_length: MaxLength = 200,
    max_rows: MaxRows = 1024,
    *,
    decoder: Decoder,
) -> None:
    """Find the σ₀ with which NPAD's output is most probable, for a stated number of model calls.

    Many σ₀ are tried on a few sentences, the better half on more, and so on. Needs no references.

    Examples:

        npad calibrate valid.en

        npad calibrate valid.en --model runs/en-cs --inner beam --width 5 --chains 10 --calls 2000000
    """
    if not isinstance(decoder, NPAD):
        raise InvalidInput("only NPAD has a σ₀ to find: leave out --decoder, and see --inner")
    try:
        grid = tuple(float(part) for part in sigmas.split(","))
    except ValueError as error:
        raise InvalidInput(
            f"--sigmas must be numbers with commas between them, not {sigmas!r}"
        ) from error
    translator = load(model, device_named(device, "--device"), precision)
    with bar("calibrating", calls, [source]) as show:
        found = calibrate(
            translator,
            list(read_lines(source)),
            decoder,
            calls,
            grid,
            max_length,
            max_rows,
            progress=partial(show, "calibrating"),
        )
    if as_json:
        print(json.dumps(asdict(found)))
        return
    table = Table()
    for name in ("σ₀", "sentences", "NLL", "without noise", "gain"):
        table.add_column(name, justify="right")
    for i, one in enumerate(found.trials):
        new_round = i + 1 < len(found.trials) and found.trials[i + 1].sentences != one.sentences
        figures = (f"{one.nll:.3f}", f"{one.inner:.3f}", f"{one.inner - one.nll:.3f}")
        table.add_row(f"{one.sigma:g}", f"{one.sentences:,}", *figures, end_section=new_round)
    out = console()
    out.print(table)
    out.print(
        f"σ₀ = {found.sigma:g}, by {found.calls:,} model calls. Use it: --decoder npad --sigma {found.sigma:g}"
    )
