"""npad calibrate: choose σ₀ for a model, or fit its confidence."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from npad.cli.confidence import write_confidence
from npad.cli.decoder_choice import options_for
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
from npad.evaluate.bootstrap import LEVEL, Difference
from npad.experiments.calibrate import CALLS, GRID, Trial, calibrate
from npad.pipelines.loading import load
from npad.search.decoder import Decoder
from npad.search.defaults import Defaults
from npad.search.npad import NPAD
from npad.text.files import read_lines

LEGEND = f"""\
gain             NLL without noise minus NLL, with its {LEVEL} % interval over resampled sentences
behind the best  NLL minus the round's best; a tie if the interval includes 0
"""


@decodes("npad", confidence="beam")
def command(
    source: Annotated[
        Path, typer.Argument(help="File of typical source lines: plain, .gz, .xz, or -.")
    ],
    model: ModelName = DEFAULT_MODEL,
    calls: Annotated[
        int | None,
        typer.Option(
            help=f"Approximate model calls to spend, re-scoring included. [{CALLS:,}]", min=1
        ),
    ] = None,
    sigmas: Annotated[
        str | None,
        typer.Option(
            metavar="N,…",
            help="Candidates for σ₀, separated by commas. "
            f"[{','.join(f'{sigma:g}' for sigma in GRID)}]",
        ),
    ] = None,
    confidence: Annotated[
        Path | None,
        typer.Option(
            metavar="REFERENCES",
            help="Fit the model's confidence instead, to the chrF of its outputs against these "
            "references, line by line; it is written into the model's folder.",
        ),
    ] = None,
    device: Device = "auto",
    precision: Precision = "float32",
    as_json: Annotated[
        bool,
        typer.Option("--json", help="Print the trials as one JSON object.", rich_help_panel=OUTPUT),
    ] = False,
    max_length: MaxLength = 200,
    max_rows: MaxRows = 1024,
    *,
    decoder: Decoder,
) -> None:
    """Find the σ₀ with which NPAD's output is most probable, or fit the model's confidence.

    Successive halving within a budget of model calls: all σ₀ are tried on a few sentences, the
    better half on more sentences, and so on. Of those that tie with the best in the last round, the
    smallest is chosen. No references are needed.

    With --confidence: the sentence chrF to expect of an output, by its log-probability per token,
    from an isotonic regression on a validation set. `npad translate --json` then shows it.

    Examples:

        npad calibrate valid.en

        npad calibrate valid.en -m runs/en-cs --inner beam --width 5 --chains 10 --calls 2000000

        npad calibrate valid.en --confidence valid.cs -m runs/en-cs
    """
    if confidence is not None:
        for name, value in {"--calls": calls, "--sigmas": sigmas}.items():
            if value is not None:
                raise InvalidInput(f"{name} goes with σ₀, not with --confidence; leave one out")
        write_confidence(
            model,
            source,
            confidence,
            decoder,
            device_named(device, "--device"),
            precision,
            max_length,
            max_rows,
            as_json,
        )
        return
    if not isinstance(decoder, NPAD):
        raise InvalidInput(
            "only NPAD has a σ₀ to calibrate; leave out --decoder, or choose its inner one: --inner"
        )
    calls = CALLS if calls is None else calls
    try:
        grid = GRID if sigmas is None else tuple(float(part) for part in sigmas.split(","))
    except ValueError as error:
        raise InvalidInput(
            f"--sigmas must be numbers separated by commas, not {sigmas!r}"
        ) from error
    translator = load(model, device_named(device, "--device"), precision)
    with bar("calibrating", calls, [source]) as progress:
        calibration = calibrate(
            translator,
            list(read_lines(source)),
            decoder,
            calls,
            grid,
            max_length,
            max_rows,
            progress=partial(progress, "calibrating"),
        )
    options = None
    if calibration.sigma is not None:
        noise = replace(decoder.noise, sigma=calibration.sigma)
        options = options_for(replace(decoder, noise=noise), Defaults.of(translator.model))
    if as_json:
        print(json.dumps(asdict(calibration) | {"options": options}))
        return
    out = console()
    out.print(_trials_table(calibration.trials), LEGEND, sep="\n")
    spent = f"by {calibration.calls:,} model calls"
    if options is None:
        out.print(f"No σ₀ gained anything over the inner decoder, {spent}: try others, or more")
        out.print("sentences or chains.")
        return
    out.print(f"σ₀ = {calibration.sigma:g}, {spent}. Use it:")
    out.print(options, soft_wrap=True)


def _with_interval(difference: Difference) -> str:
    return f"{difference.value:.3f} [{difference.low:.3f}, {difference.high:.3f}]"


def _trials_table(trials: Sequence[Trial]) -> Table:
    """Return the trials as a table, with a line between rounds."""
    table = Table()
    for name in ("σ₀", "sentences", "NLL", "without noise", "gain", "behind the best"):
        table.add_column(name, justify="right")
    next_sizes = [trial.sentences for trial in trials[1:]]
    for trial, next_size in zip_longest(trials, next_sizes):
        behind = _with_interval(trial.behind) + (", a tie" if trial.ties else "")
        behind = behind if trial.behind.high > 0 else "the best"
        figures = (f"{trial.nll:.3f}", f"{trial.inner:.3f}", _with_interval(trial.gain), behind)
        ends_round = next_size is not None and next_size != trial.sentences
        table.add_row(f"{trial.sigma:g}", f"{trial.sentences:,}", *figures, end_section=ends_round)
    return table
