"""npad bench: decoding speed of this machine."""

from __future__ import annotations

import json
import os
from collections import Counter
from dataclasses import asdict
from typing import Annotated

import torch
import typer
from rich.table import Table

from npad.cli.decoder_options import make_decoder
from npad.cli.options import Device, Precision
from npad.cli.terminal import bar, console, note
from npad.engine.devices import PRECISIONS, device_named, ensure_computes
from npad.experiments import speed
from npad.search.decoder import Decoder
from npad.search.registry import DECODERS
from npad.validation import ensure_choice, ensure_integer

LEGEND = """\
latency      of a single sentence; the other columns are of many at a time
tokens/s     of the best outputs
row-steps/s  rows (sentences × chains × beams) through one step of the model
share        of the rate of a large matrix product at its fastest; operations
             are counted by the model's formulas, so that work saved by npad can
             raise it above 100 %
memory       peak so far, the model included
All times are medians of {rounds} rounds, after a warm-up."""


def command(
    decoder: Annotated[
        list[str] | None,
        typer.Option(
            "--decoder",
            "-d",
            metavar="NAME",
            help=f"Decoder to time, instead of the usual ones: {', '.join(DECODERS.kinds)}; or "
            "with its fields, as beam(width=3). May be given several times.",
        ),
    ] = None,
    device: Device = "auto",
    precision: Precision = "float32",
    units: Annotated[int, typer.Option(help="Units of the model.")] = 1024,
    embedding: Annotated[int, typer.Option(help="Embedding dimensions.")] = 512,
    vocabulary: Annotated[int, typer.Option(help="Vocabulary size, in tokens.")] = 8000,
    source: Annotated[int, typer.Option(help="Tokens of a source.")] = 20,
    length: Annotated[int, typer.Option(help="Tokens of an output.")] = 20,
    sentences: Annotated[
        int | None, typer.Option(help="Sentences at a time. [16; 512 on a GPU]")
    ] = None,
    rows: Annotated[
        int | None, typer.Option(help="Maximum rows at a time. [1,024; 32,768 on a GPU]")
    ] = None,
    rounds: Annotated[
        int, typer.Option(help="Timed rounds, of which the median counts.", min=1)
    ] = speed.ROUNDS,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object per strategy, without units.")
    ] = False,
    symbols: Annotated[int | None, typer.Option(hidden=True)] = None,
) -> None:
    """Measure how fast this machine decodes, strategy by strategy.

    The model is untrained and all outputs have the same length. Every strategy is warmed up, then
    timed several times; medians are shown. The table's legend explains its columns.

    Examples:

        npad bench

        npad bench --precision int8 --sentences 4

        npad bench --rounds 21 --json > speed.jsonl

        npad bench -d greedy -d "npad(chains=10)" -d "npad(inner=beam(width=3),chains=10)"

        npad bench --device cuda --precision bfloat16 --units 1028 --vocabulary 30000
    """
    strategies = _strategies(decoder) if decoder else speed.STRATEGIES
    resolved = device_named(device)
    ensure_choice("precision", precision, tuple(PRECISIONS))
    ensure_computes(resolved, precision)
    if symbols is not None:
        note("--symbols is deprecated and ends with npad 0.3; use --vocabulary")
        vocabulary = symbols
    gpu = resolved.type == "cuda"
    options = {
        "units": units,
        "embedding": embedding,
        "vocabulary": vocabulary,
        "source": source,
        "length": length,
    }
    options["sentences"] = (512 if gpu else 16) if sentences is None else sentences
    options["rows"] = (32_768 if gpu else 1024) if rows is None else rows
    for name, value in options.items():
        ensure_integer(name, value, 2 if name == "vocabulary" else 1)
    sizes = speed.Sizes(**options)
    machine = torch.cuda.get_device_name(resolved) if gpu else _cpu()
    rates = {
        name: speed.matrix_rate(resolved, PRECISIONS[name])
        for name in dict.fromkeys(("float32", precision))
    }
    products = ", ".join(
        f"{rate / 1e12:,.2f} TFLOP/s in {PRECISIONS[name]}" for name, rate in rates.items()
    )
    note(
        f"{machine}; {precision} chains; a large matrix product runs at {products}".replace(
            "torch.", ""
        )
    )
    title = ", ".join(f"{name} {value:,}" for name, value in asdict(sizes).items())
    table = Table(title=title, title_style="", title_justify="left")
    table.add_column("strategy")
    for column in ("latency", "tokens/s", "row-steps/s", "share", "memory"):
        table.add_column(column, justify="right")
    with bar(next(iter(strategies)), len(strategies)) as progress:
        speeds = speed.measured(sizes, resolved, precision, rates, rounds, strategies)
        for done, measured in enumerate(speeds, start=1):
            progress(f"{measured.strategy} is done", done, len(strategies))
            if as_json:
                print(json.dumps(asdict(measured) | {"rounds": rounds, "precision": precision}))
                continue
            cells = (
                f"{1e3 * measured.latency:,.1f} ms",
                f"{measured.tokens:,.0f}",
                f"{measured.row_steps:,.0f}",
                f"{measured.share:.0%}",
            )
            table.add_row(measured.strategy, *cells, f"{measured.memory / 2**30:.2f} GiB")
    if not as_json:
        console().print(table)
        console().print(LEGEND.format(rounds=rounds))


def _cpu() -> str:
    """Describe how products are computed on this CPU."""
    names = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
    waiting = [f"{name}={os.environ[name]}" for name in names if name in os.environ]
    return ", ".join([f"CPU, {torch.get_num_threads()} threads", *waiting])


def _strategies(specs: list[str]) -> dict[str, Decoder]:
    """Return the decoders that --decoder names, each by its title, or by its spec where two agree.

    A spec that is given twice is timed once.
    """
    decoders = {spec: make_decoder(spec, {}) for spec in specs}
    titles = Counter(decoder.title for decoder in decoders.values())
    return {
        decoder.title if titles[decoder.title] == 1 else spec: decoder
        for spec, decoder in decoders.items()
    }
