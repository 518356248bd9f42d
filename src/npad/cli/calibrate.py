"""npad calibrate: which decoder for a model, a metric and a budget."""

from __future__ import annotations

import json
import shlex
import sys
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

import typer

from npad.calibrate.calibrate import Options, Pairs, calibrate
from npad.calibrate.decoder_space import DecoderSpace
from npad.calibrate.report import (
    LEGEND,
    LEVEL,
    Data,
    as_record,
    cheaper,
    header,
    method,
    plot,
    summary,
    table_rows,
    verdict,
    with_cost,
)
from npad.cli.decoder_options import decodes, options_for
from npad.cli.evaluate import are_recordings
from npad.cli.options import (
    DEFAULT_MODEL,
    OUTPUT,
    Device,
    MaxLength,
    MaxRows,
    ModelName,
    Precision,
    option,
)
from npad.cli.terminal import bar, console, plain_table
from npad.engine.cost import Unit
from npad.engine.devices import device_named
from npad.errors import InvalidInput, noting_interrupts
from npad.evaluate.plots import ensure_plottable
from npad.metrics.registry import metric_names
from npad.pipelines.loading import load_as
from npad.pipelines.pipeline import Pipeline
from npad.pipelines.sound import read
from npad.pipelines.transcription import Transcriber
from npad.pipelines.translation import Translator
from npad.reproduce.record import Record
from npad.scale.worker import fingerprint
from npad.search.decoder import Decoder
from npad.search.defaults import Defaults
from npad.search.greedy import Greedy
from npad.search.npad import NPAD
from npad.search.request import MAX_LENGTH, MAX_ROWS, Decoding
from npad.text.files import Lines, read_pairs
from npad.validation import ensure_number

# What the recommended command line leaves out.
DEFAULTS: dict[str, Any] = {
    "device": "auto",
    "precision": "float32",
    "max-length": MAX_LENGTH,
    "max-rows": MAX_ROWS,
}
CALLS = 100  # the budget without --calls and --milliseconds: a beam of 5 to 8 on short sentences


@decodes(None)
def command(
    source: Annotated[
        str, typer.Argument(help="File of typical source lines: plain, .gz, .xz, or -.")
    ],
    reference: Annotated[
        str | None,
        typer.Argument(
            help="Their references, line by line; a wide beam's outputs if there are none."
        ),
    ] = None,
    model: ModelName = DEFAULT_MODEL,
    calls: Annotated[
        float | None,
        option(f"Budget: model calls per sentence, re-scoring included. [{CALLS}]", metavar="N"),
    ] = None,
    milliseconds: Annotated[
        float | None,
        option(
            "Budget: milliseconds per sentence on this machine, when it is idle.",
            "--milliseconds",
            "--ms",
            metavar="N",
        ),
    ] = None,
    batch: Annotated[int, option("With --milliseconds: sentences decoded at a time.", min=1)] = 1,
    metric: Annotated[
        str | None,
        option(
            f"{', '.join(metric_names())}. [bleu; wer for recordings; logprob without references]",
            names=metric_names(),
        ),
    ] = None,
    held_out: Annotated[
        str | None,
        option("Source lines to compare the best decoders on. [half of SOURCE]", hidden=True),
    ] = None,
    held_out_reference: Annotated[str | None, option("Their references.", hidden=True)] = None,
    check_all: Annotated[
        bool,
        option(
            "Compare all decoders in the budget on the held-out lines; slow.",
            "--check-all",
            hidden=True,
        ),
    ] = False,
    sigmas: Annotated[
        str | None,
        option("NPAD's σ₀ to try, separated by commas. [around the default]", metavar="N,…"),
    ] = None,
    split_seed: Annotated[
        int, option("Seed of the split and of the order of the lines.", min=0, hidden=True)
    ] = 0,
    records: Annotated[
        Path | None,
        option(
            "JSON lines that keep all outputs: the same command continues after an interrupt.",
            panel=OUTPUT,
        ),
    ] = None,
    plot_file: Annotated[
        Path | None,
        option("Plot of quality against cost: .png, .svg, .pdf.", "--plot", panel=OUTPUT),
    ] = None,
    device: Device = "auto",
    precision: Precision = "float32",
    as_json: Annotated[bool, option("Print all figures as JSON.", "--json", panel=OUTPUT)] = False,
    max_length: MaxLength = MAX_LENGTH,
    max_rows: MaxRows = MAX_ROWS,
    *,
    decoder: Decoder | None,
) -> None:
    """Find the best decoder for a model, a metric and a budget.

    Tries greedy, beam, diverse and steered search, samples, and NPAD with many settings and
    selectors: all on a few sentences, the better ones on twice as many, and so on. The best are
    compared on sentences that were held out. Prints the frontier of quality against cost, the
    command line of the best decoder, and what it beats beyond chance.

    With --decoder npad and its options, only σ₀ is searched, for that decoder.

    Examples:

        npad calibrate valid.en valid.de --calls 60

        npad calibrate valid.en valid.cs -m runs/en-cs --ms 20 --metric chrf --plot frontier.png

        npad calibrate valid.en -d npad --inner beam --width 5 --chains 10 --calls 1000
    """
    budget, unit = _budget(calls, milliseconds)
    if batch > 1 and unit == "calls":
        raise InvalidInput("--batch applies to a time budget: add --milliseconds, or leave it out")
    options = Options(budget, unit, metric, check_all, split_seed, batch=batch)
    if decoder is not None and not isinstance(decoder, NPAD):
        raise InvalidInput(
            "only NPAD has a σ₀ to calibrate; leave out --decoder to try all decoders, or choose "
            "NPAD's inner one: --decoder npad --inner"
        )
    if plot_file is not None:
        ensure_plottable(plot_file)
    place = device_named(device, "--device")  # refused before anything is read
    pairs, held = _read_pairs(source, reference, held_out, held_out_reference)
    recordings = are_recordings(pairs.sources)
    if options.metric is None:
        usual = "wer" if recordings else "bleu"
        options = replace(options, metric="logprob" if pairs.references is None else usual)
    if recordings and precision != "float32":
        raise InvalidInput("--precision does not apply to recordings; leave it out")
    pipeline: Pipeline
    if recordings:
        pipeline = transcriber = load_as(Transcriber, model, place)
    else:
        pipeline = translator = load_as(Translator, model, place, precision)
        if unit == "calls":  # a cache would leave tokenising out of the time
            pipeline = translator.caching()
    space = DecoderSpace(pipeline.model, str(options.metric), options.unit, _numbers(sigmas))
    candidates = space.candidates() if decoder is None else space.sigma_candidates(decoder)
    identity = (fingerprint(model)[:32], place, precision, max_length, max_rows)
    way_on = "the same command continues"
    if records is None:
        way_on = "with --records FILE, the same command continues after an interrupt"
    with noting_interrupts(lambda: way_on), bar("calibrating") as progress:
        found = calibrate(
            pipeline,
            pairs,
            options,
            held,
            candidates,
            Record(records),
            " ".join(map(str, identity)),
            partial(progress, "calibrating"),
            Decoding(Greedy(), max_length, max_rows),
            (lambda path: read(path, transcriber.rate)) if recordings else str,
        )
    given = dict(zip(DEFAULTS, (device, precision, max_length, max_rows), strict=True))
    changed = {name: value for name, value in given.items() if value != DEFAULTS[name]}
    options_given = ((f"--{name}", str(value)) for name, value in changed.items())
    words = ["--model", model, *chain.from_iterable(options_given)]
    line = shlex.join(["npad", "transcribe" if recordings else "translate", *words])
    inputs = shlex.join(pairs.sources[:1] if recordings else ["--input", str(source)])
    defaults = Defaults.of(pipeline.model)
    made = {c.name: options_for(c.decoder, defaults) for c in found.candidates.values()}
    chosen = {"best": found.winner} | ({"cheaper": found.cheaper} if found.cheaper else {})
    commands = {key: f"{line} {made[name]} {inputs}" for key, name in chosen.items()}
    data = as_record(found, model, made, commands, shlex.join(["npad", *sys.argv[1:]]))
    if plot_file is not None:
        plot(data, plot_file)
    if as_json:
        print(json.dumps(data, ensure_ascii=False))
    else:
        _print(data)


def _read_pairs(
    source: str, reference: str | None, held_out: str | None, held_out_reference: str | None
) -> tuple[Pairs, Pairs | None]:
    """Return the sentences, and those to be held out if they have files of their own."""
    if held_out is None:
        if held_out_reference is not None:
            raise InvalidInput("--held-out-reference needs --held-out, the references' sources")
        return _read_part(source, reference), None
    if (reference is None) != (held_out_reference is None):
        raise InvalidInput("give references of both SOURCE and --held-out, or of neither")
    held = _read_part(held_out, held_out_reference)
    return _read_part(source, reference), held


def _read_part(source: str, reference: str | None) -> Pairs:
    if reference is None:
        return Pairs.checked(list(Lines.of_file(source)), None)
    return Pairs.checked(*read_pairs(Lines.of_file(source), Lines.of_file(reference)))


def _print(data: Data) -> None:
    """Print the frontier, the command line of the recommended decoder, and what it beats."""
    out = console()
    sizes = data["sentences"]
    title = f"{data['model']}, {sizes['search']:,} and {sizes['held_out']:,} sentences"
    table = plain_table(title, (name.replace(": ", "\n") for name in header(data)))
    for cells in table_rows(data):
        table.add_row(*cells, style="bold" if "recommended" in cells else "")
    out.print("\n".join(summary(data)), "", sep="\n")
    out.print(table, "", sep="\n")
    out.print(LEGEND.format(level=LEVEL))
    for sentence in [*verdict(data), method()]:
        out.print(sentence)
    out.print(f"\nRecommended: {with_cost(data, data['winner'])}")
    out.print(f"  {data['command']['best']}", soft_wrap=True)
    out.print(cheaper(data))
    if data["cheaper"] is not None:
        out.print(f"  {data['command']['cheaper']}", soft_wrap=True)


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
