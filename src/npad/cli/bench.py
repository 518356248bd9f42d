"""npad bench: how fast this machine decodes."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import torch
import typer
from rich.table import Table

from npad.cli.options import Device, Precision
from npad.cli.terminal import bar, console, note
from npad.engine.devices import PRECISIONS, device_named, ensure_computes
from npad.experiments import speed
from npad.validation import ensure_choice, ensure_integer


def command(
    device: Device = "auto",
    precision: Precision = "float32",
    units: Annotated[int, typer.Option(help="Of the model.")] = 1024,
    embedding: Annotated[int, typer.Option(help="Width of its embeddings.")] = 512,
    symbols: Annotated[int, typer.Option(help="Of its vocabulary.")] = 8000,
    source: Annotated[int, typer.Option(help="Symbols of a source.")] = 20,
    length: Annotated[int, typer.Option(help="Symbols written.")] = 20,
    sentences: Annotated[int | None, typer.Option(help="At a time; 16, or 512 on a GPU.")] = None,
    rows: Annotated[
        int | None, typer.Option(help="At a time, at most; 1,024, or 32,768 on a GPU.")
    ] = None,
) -> None:
    """How fast this machine decodes, strategy by strategy, with an untrained model and outputs of one length.

    Latency is of one sentence, all else of many at a time. Tokens are those of the best outputs; a row-step is one row
    (sentence × chain × beam) through one step of the model; the share is of the rate of a large matrix product in
    float32, or in the chains' precision, by the operations of the plain formulas; memory is the most that was in use,
    the model included.

    Examples:

        npad bench

        npad bench --precision int8 --sentences 4

        npad bench --device cuda --precision bfloat16 --units 1028 --symbols 30000
    """
    where = device_named(device)
    ensure_choice("precision", precision, tuple(PRECISIONS))
    ensure_computes(where, precision)
    gpu = where.type == "cuda"
    given = {
        "units": units,
        "embedding": embedding,
        "symbols": symbols,
        "source": source,
        "length": length,
    }
    given["sentences"] = (512 if gpu else 16) if sentences is None else sentences
    given["rows"] = (32_768 if gpu else 1024) if rows is None else rows
    for name, value in given.items():
        ensure_integer(name, value, 2 if name == "symbols" else 1)
    sizes = speed.Sizes(**given)
    machine = (
        torch.cuda.get_device_name(where) if gpu else f"CPU, {torch.get_num_threads()} threads"
    )
    rates = {
        name: speed.matrix_rate(where, PRECISIONS[name])
        for name in dict.fromkeys(("float32", precision))
    }
    products = ", ".join(
        f"{rate / 1e12:,.2f} TFLOP/s in {PRECISIONS[name]}" for name, rate in rates.items()
    )
    note(f"{machine}; {precision} chains; a large product runs at {products}".replace("torch.", ""))
    said = ", ".join(f"{name} {value:,}" for name, value in asdict(sizes).items())
    table = Table(title=said, title_style="", title_justify="left")
    table.add_column("strategy")
    for column in ("latency", "tokens/s", "row-steps/s", "share", "memory"):
        table.add_column(column, justify="right")
    with bar("greedy", len(speed.STRATEGIES)) as watch:
        for done, one in enumerate(speed.measured(sizes, where, precision, rates), start=1):
            watch(f"{one.strategy} is done", done, len(speed.STRATEGIES))
            cells = (
                f"{1e3 * one.latency:,.1f} ms",
                f"{one.tokens:,.0f}",
                f"{one.row_steps:,.0f}",
                f"{one.share:.0%}",
            )
            table.add_row(one.strategy, *cells, f"{one.memory / 2**30:.2f} GiB")
    console().print(table)
