"""npad bench: decoding speed of this machine."""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from itertools import cycle, islice
from pathlib import Path
from typing import Annotated, Any

import torch
from rich.table import Table

from npad.cli.decoder_options import complete_decoder, flag_of
from npad.cli.options import Device, Precision, option
from npad.cli.terminal import bar, console, note
from npad.engine.devices import PRECISIONS, device_named, ensure_computes
from npad.errors import InvalidInput
from npad.pipelines.loading import defaults_of, load
from npad.reproduce import speed
from npad.search.decoder import Decoder
from npad.search.defaults import Defaults
from npad.search.request import Decoding, decoding_from
from npad.text.files import read_lines
from npad.validation import counted, ensure_choice, ensure_integer

LEGEND = """\
latency      of a single sentence; the other columns are of many at a time
tokens/s     of the best outputs
row-steps/s  rows (sentences × chains × beams) through one step of the model
{share}memory       peak so far, the model included
All times are medians of {rounds} rounds, after a warm-up."""
SHARE = """\
share        of the rate of a large matrix product at its fastest; operations
             are counted by the model's formulas, so that work saved by npad can
             raise it above 100 %
"""
SIZES = speed.Workload()  # of the untrained model
MODEL_LENGTH = 200  # tokens of an output of a given model, at most, as in `npad translate`


def command(
    decoder: Annotated[
        list[str] | None,
        option(
            "Decoder to time, instead of the usual ones, by name or with its fields, as "
            "beam(width=3). May be given several times.",
            "--decoder",
            "-d",
            complete=complete_decoder,
        ),
    ] = None,
    model: Annotated[
        str | None,
        option(
            "Time this model, as `npad translate` names it, instead of an untrained one.",
            "--model",
            "-m",
            metavar="NAME",
        ),
    ] = None,
    input: Annotated[
        Path | None,
        option("Lines for --model to translate. [everyday English sentences]", "--input", "-i"),
    ] = None,
    device: Device = "auto",
    precision: Precision = "float32",
    units: Annotated[int | None, option(f"Units of the untrained model. [{SIZES.units:,}]")] = None,
    embedding: Annotated[
        int | None, option(f"Its embedding dimensions. [{SIZES.embedding:,}]")
    ] = None,
    vocabulary: Annotated[
        int | None, option(f"Its vocabulary size, in tokens. [{SIZES.vocabulary:,}]")
    ] = None,
    source: Annotated[int | None, option(f"Tokens of its sources. [{SIZES.source}]")] = None,
    length: Annotated[
        int | None,
        option(f"Tokens of an output. [{SIZES.length}; with --model, at most {MODEL_LENGTH}]"),
    ] = None,
    sentences: Annotated[int | None, option("Sentences at a time. [16; 512 on a GPU]")] = None,
    rows: Annotated[int | None, option("Maximum rows at a time. [1,024; 32,768 on a GPU]")] = None,
    rounds: Annotated[
        int, option("Timed rounds, of which the median counts.", min=1)
    ] = speed.ROUNDS,
    as_json: Annotated[
        bool, option("Print one JSON object per strategy, without units.", "--json")
    ] = False,
) -> None:
    """Measure how fast this machine decodes, strategy by strategy.

    The model is untrained and all outputs have the same length; with --model it is yours, and
    its outputs end where they end. Every strategy is warmed up, then timed several times; medians
    are shown. The table's legend explains its columns.

    Examples:

        npad bench

        npad bench --precision int8 --sentences 4

        npad bench --rounds 21 --json > speed.jsonl

        npad bench -d greedy -d "npad(chains=10)" -d "npad(inner=beam(width=3),chains=10)"

        npad bench --model runs/en-cs --input test.en

        npad bench --device cuda --precision bfloat16 --units 1028 --vocabulary 30000
    """
    resolved = device_named(device)
    ensure_choice("precision", precision, tuple(PRECISIONS))
    ensure_computes(resolved, precision)
    gpu = resolved.type == "cuda"
    sizes = {"units": units, "embedding": embedding, "vocabulary": vocabulary, "source": source}
    sizes |= {"length": length, "sentences": sentences, "rows": rows}
    defaults = asdict(SIZES) | ({"sentences": 512, "rows": 32_768} if gpu else {})
    if model is not None:
        defaults["length"] = MODEL_LENGTH
        for name in ("units", "embedding", "vocabulary", "source"):
            if sizes[name] is not None:
                raise InvalidInput(
                    f"--{name} applies to the untrained model; leave it out with --model"
                )
    elif input is not None:
        raise InvalidInput("--input needs a model of your own: add --model")
    chosen = {name: defaults[name] if value is None else value for name, value in sizes.items()}
    for name, value in chosen.items():
        ensure_integer(name, value, 2 if name == "vocabulary" else 1)
    machine = torch.cuda.get_device_name(resolved) if gpu else _cpu()
    if model is None:
        title = ", ".join(f"{name} {value:,}" for name, value in chosen.items())
        strategies = _strategies(decoder, Defaults())
        rates = _matrix_rates(resolved, precision, machine)
        workload = speed.Workload(**chosen)
        speeds = speed.measured(workload, resolved, precision, rates, strategies, rounds)
    else:
        texts = _texts(input, chosen["sentences"])
        note(f"{machine}; {precision} chains")
        title = f"model {model}, sentences {len(texts):,}, rows {chosen['rows']:,}"
        strategies = _strategies(decoder, defaults_of(model))
        limits = chosen["length"], chosen["rows"]
        requests = {name: Decoding(decoder, *limits) for name, decoder in strategies.items()}
        translator = load(model, resolved, precision)
        speeds = speed.measured_model(translator, texts, resolved, requests, rounds)
    _show(speeds, list(strategies), title, {"rounds": rounds, "precision": precision}, as_json)


def _show(
    speeds: Iterator[speed.Speed],
    names: list[str],
    title: str,
    settings: dict[str, Any],
    as_json: bool,
) -> None:
    """Print the speeds of strategies as they are measured: JSON, or a table at the end."""
    rows: list[speed.Speed] = []
    with bar(names[0], len(names)) as progress:
        for done, measured in enumerate(speeds, start=1):
            progress(f"{measured.strategy} is done", done, len(names))
            rows.append(measured)
            if not sys.stderr.isatty():  # where there is no bar
                note(f"{done} of {len(names)} done: {measured.strategy}")
            if as_json:
                print(json.dumps(asdict(measured) | settings), flush=True)
    if as_json:
        return
    shares = all(row.share is not None for row in rows)
    table = Table("strategy", title=title, title_style="", title_justify="left")
    for column in ("latency", "tokens/s", "row-steps/s", *(["share"] if shares else []), "memory"):
        table.add_column(column, justify="right")
    for row in rows:
        cells = [f"{1e3 * row.latency:,.1f} ms", f"{row.tokens:,.0f}", f"{row.row_steps:,.0f}"]
        cells += [] if row.share is None else [f"{row.share:.0%}"]
        table.add_row(row.strategy, *cells, f"{row.memory / 2**30:.2f} GiB")
    console().print(table)
    console().print(LEGEND.format(rounds=settings["rounds"], share=SHARE if shares else ""))


def _matrix_rates(device: torch.device, precision: str, machine: str) -> dict[str, float]:
    """Return the rates of a large matrix product by precision, and print them as a note."""
    rates = {
        name: speed.matrix_rate(device, PRECISIONS[name])
        for name in dict.fromkeys(("float32", precision))
    }
    products = ", ".join(
        f"{rate / 1e12:,.2f} TFLOP/s in {PRECISIONS[name]}" for name, rate in rates.items()
    )
    message = f"{machine}; {precision} chains; a large matrix product runs at {products}"
    note(message.replace("torch.", ""))
    return rates


def _texts(path: Path | None, count: int) -> list[str]:
    """Return `count` texts: the lines of a file that are not blank, or sentences, repeated."""
    lines = list(speed.SENTENCES) if path is None else list(read_lines(path))
    texts = [line for line in lines if line.strip()]
    if not texts:
        raise InvalidInput(f"there is nothing to translate in {path}: all lines are blank")
    return list(islice(cycle(texts), count))


def _cpu() -> str:
    """Describe how products are computed on this CPU."""
    names = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
    waiting = [f"{name}={os.environ[name]}" for name in names if name in os.environ]
    return ", ".join([f"CPU, {counted(torch.get_num_threads(), 'thread')}", *waiting])


def _strategies(specs: list[str] | None, defaults: Defaults) -> dict[str, Decoder]:
    """Return the decoders to time by title, or by spec where two of --decoder have one title.

    A spec that is given twice is timed once.
    """
    if not specs:
        return speed.usual_strategies(defaults)
    requests = {spec: decoding_from({"decoder": spec}, defaults, spell=flag_of) for spec in specs}
    decoders = {spec: request.decoder for spec, request in requests.items()}
    titles = Counter(decoder.title for decoder in decoders.values())
    return {
        decoder.title if titles[decoder.title] == 1 else spec: decoder
        for spec, decoder in decoders.items()
    }
