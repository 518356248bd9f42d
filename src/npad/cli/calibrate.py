"""npad calibrate: which decoder for a model, a metric and a budget; or fit a model's confidence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from npad.calibrate.calibrate import Options
from npad.calibrate.measured_part import Unit
from npad.calibrate.report import plot
from npad.cli.calibration_run import Files, Setting, search_decoders
from npad.cli.calibration_table import print_calibration
from npad.cli.confidence import write_confidence
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
from npad.engine.devices import device_named
from npad.errors import InvalidInput
from npad.evaluate.plots import ensure_plottable
from npad.metrics.registry import METRICS
from npad.search.decoder import Decoder
from npad.search.npad import NPAD
from npad.validation import ensure_number

CALLS = 100  # the budget without --calls and --milliseconds: a beam of 5 to 8 on short sentences


@decodes(None, confidence="beam")
def command(
    source: Annotated[
        Path, typer.Argument(help="File of typical source lines: plain, .gz, .xz, or -.")
    ],
    reference: Annotated[
        Path | None,
        typer.Argument(
            help="Their references, line by line; a wide beam's outputs if there are none."
        ),
    ] = None,
    model: ModelName = DEFAULT_MODEL,
    calls: Annotated[
        float | None,
        typer.Option(
            help=f"Budget: model calls a sentence, re-scoring included. [{CALLS}]", metavar="N"
        ),
    ] = None,
    milliseconds: Annotated[
        float | None,
        typer.Option(
            "--milliseconds", "--ms", help="Budget: milliseconds a sentence.", metavar="N"
        ),
    ] = None,
    metric: Annotated[
        str | None,
        typer.Option(
            help=f"{', '.join(METRICS)}. [bleu; wer for recordings; logprob without references]",
            metavar="NAME",
        ),
    ] = None,
    held_out: Annotated[
        Path | None,
        typer.Option(help="Source lines to compare the best decoders on. [half of SOURCE]"),
    ] = None,
    held_out_reference: Annotated[Path | None, typer.Option(help="Their references.")] = None,
    check_all: Annotated[
        bool,
        typer.Option(
            "--check-all", help="Compare all decoders in the budget on the held-out lines; slow."
        ),
    ] = False,
    sigmas: Annotated[
        str | None,
        typer.Option(
            metavar="N,…", help="NPAD's σ₀ to try, separated by commas. [around the default]"
        ),
    ] = None,
    split_seed: Annotated[
        int, typer.Option(help="Seed of the split and of the order of the lines.", min=0)
    ] = 0,
    records: Annotated[
        Path | None,
        typer.Option(
            help="JSON lines that keep all outputs: the same command continues after an interrupt.",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    plot_file: Annotated[
        Path | None,
        typer.Option(
            "--plot",
            help="Plot of quality against cost: .png, .svg, .pdf.",
            rich_help_panel=OUTPUT,
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
        typer.Option("--json", help="Print all figures as JSON.", rich_help_panel=OUTPUT),
    ] = False,
    max_length: MaxLength = 200,
    max_rows: MaxRows = 1024,
    *,
    decoder: Decoder | None,
) -> None:
    """Find the best decoder for a model, a metric and a budget; or fit the model's confidence.

    Tries greedy, beam, diverse and steered search, samples, and NPAD with many settings and
    selectors: all on a few sentences, the better ones on twice as many, and so on. The best are
    compared on sentences that were held out. Prints the frontier of quality against cost, the
    command line of the best decoder, and what it beats beyond chance.

    With --decoder npad and its options, only σ₀ is searched, for that decoder.

    With --confidence: the sentence chrF to expect of an output, by its log-probability per token,
    from an isotonic regression on a validation set. `npad translate --json` then shows it.

    Examples:

        npad calibrate valid.en valid.de --calls 60

        npad calibrate valid.en valid.cs -m runs/en-cs --ms 20 --metric chrf --plot frontier.png

        npad calibrate valid.en -d npad --inner beam --width 5 --chains 10 --calls 1000

        npad calibrate valid.en --confidence valid.cs -m runs/en-cs
    """
    if confidence is not None:
        values = {"--calls": calls, "--sigmas": sigmas, "--milliseconds": milliseconds}
        for name, value in {**values, "--metric": metric, "REFERENCE": reference}.items():
            if value is not None:
                raise InvalidInput(
                    f"{name} goes with the choice of a decoder, not with --confidence; "
                    "leave one out"
                )
        assert decoder is not None
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
    options = Options(
        *_budget(calls, milliseconds), metric=metric, check_all=check_all, seed=split_seed
    )
    if decoder is not None and not isinstance(decoder, NPAD):
        raise InvalidInput(
            "only NPAD has a σ₀ to calibrate; leave out --decoder to try all decoders, or choose "
            "NPAD's inner one: --decoder npad --inner"
        )
    if plot_file is not None:
        ensure_plottable(plot_file)
    setting = Setting(model, device, precision, max_length, max_rows)
    files = Files(source, reference, held_out, held_out_reference)
    data = search_decoders(setting, files, options, decoder, _numbers(sigmas), records)
    if plot_file is not None:
        plot(data, plot_file)
    if as_json:
        print(json.dumps(data, ensure_ascii=False))
    else:
        print_calibration(data)


def _budget(calls: float | None, milliseconds: float | None) -> tuple[float, Unit]:
    if calls is not None and milliseconds is not None:
        raise InvalidInput("the budget is --calls or --milliseconds, not both; leave one out")
    for name, value in {"--calls": calls, "--milliseconds": milliseconds}.items():
        if value is not None:
            ensure_number(name, value, above=0)
    if milliseconds is not None:
        return milliseconds, "milliseconds"
    return CALLS if calls is None else calls, "calls"


def _numbers(sigmas: str | None) -> list[float] | None:
    if sigmas is None:
        return None
    try:
        numbers = [float(part) for part in sigmas.split(",")]
    except ValueError as error:
        raise InvalidInput(
            f"--sigmas must be numbers separated by commas, not {sigmas!r}"
        ) from error
    for number in numbers:
        ensure_number("sigma", number, above=0)
    return numbers
