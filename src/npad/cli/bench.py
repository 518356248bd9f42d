"""npad bench: decoding speed of this machine."""

from __future__ import annotations

import json
import os
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from typing import Annotated

import torch

from npad.cli.decoder_options import compares
from npad.cli.options import DEFAULT_MODEL, OUTPUT, Device, ModelName, Precision, option
from npad.cli.terminal import bar, console, plain_table
from npad.engine.devices import device_named, machine_name
from npad.engine.memory import peak_memory
from npad.errors import InvalidInput
from npad.evaluate.report import decode_timed
from npad.evaluate.timing import time_in_turn
from npad.pipelines.loading import load_as
from npad.pipelines.translation import Translator
from npad.search.request import Decoding
from npad.text.files import read_lines

LEGEND = """\
latency      of a single sentence; the other columns are of many at a time
tokens/s     of the best outputs
row-steps/s  rows (sentences × chains × beams) through one step of the model
All times are medians of {rounds} rounds in which the strategies take turns, after a warm-up."""
ROUNDS = 7  # of which the median counts
SENTENCES = (  # everyday ones, translated by default
    "How do I get to the station?",
    "She spends most of her money on books.",
    "I would rather stay at home than go out tonight.",
    "Where is the library?",
    "He has been learning to play the guitar for two years.",
    "Could you tell me what time the next train leaves?",
    "It was raining, so we took a taxi.",
    "My brother lives in a small house by the sea.",
)


@compares()
def command(
    model: ModelName = DEFAULT_MODEL,
    input: Annotated[
        Path | None, option("Lines to translate. [everyday English sentences]", "--input", "-i")
    ] = None,
    device: Device = "auto",
    precision: Precision = "float32",
    sentences: Annotated[int, option("Sentences at a time.", min=1)] = 16,
    rounds: Annotated[int, option("Timed rounds, of which the median counts.", min=1)] = ROUNDS,
    as_json: Annotated[
        bool, option("Print one JSON object per strategy, without units.", "--json", panel=OUTPUT)
    ] = False,
    *,
    decodings: dict[str, Decoding],
) -> None:
    """Measure how fast this machine decodes, strategy by strategy.

    The model that comes with npad, or yours, translates the same sentences by every decoder, first
    one alone and then all together. The table's legend explains its columns.

    Examples:

        npad bench

        npad bench --precision int8 --sentences 4

        npad bench -d greedy -d "npad(chains=10)" -d "npad(inner=beam(width=3),chains=10)"

        npad bench --model runs/en-cs --input test.en --rounds 21 --json > speed.jsonl

        npad bench --device cuda --precision bfloat16 --sentences 512 --max-rows 32768
    """
    place, texts = device_named(device, "--device"), _texts(input, sentences)
    translator = load_as(Translator, model, place, precision)
    with bar("timing") as progress:
        decoded = {
            name: decode_timed(translator, texts, decoding, len(texts))
            for name, decoding in decodings.items()
        }
        time = partial(
            time_in_turn, translator, rounds=rounds, progress=partial(progress, "timing")
        )
        alone = time(texts[:1], decodings)
        together = time(texts, decodings, len(texts))
    rows = {}
    for name, found in decoded.items():
        seconds = len(texts) / together[name].per_second
        best = [output.hypothesis for output in found.outputs]
        tokens = sum(len(hypothesis.tokens) + hypothesis.finished for hypothesis in best)
        rows[name] = {
            "latency": alone[name].milliseconds / 1000,
            "tokens": tokens / seconds,
            "row_steps": found.calls / seconds,
        }
    memory = peak_memory(place)
    if as_json:
        settings = {"memory": memory, "rounds": rounds, "precision": precision}
        for name, row in rows.items():
            print(json.dumps({"strategy": name, **row, **settings}))
        return
    title = f"model {model}, {precision} chains, sentences {len(texts):,}; {_machine(place)}"
    table = plain_table(title, ("strategy", "latency", "tokens/s", "row-steps/s"), (0, 1))
    for name, row in rows.items():
        latency = f"{1000 * row['latency']:,.1f} ms"
        table.add_row(name, latency, f"{row['tokens']:,.0f}", f"{row['row_steps']:,.0f}")
    console().print(table, "", LEGEND.format(rounds=rounds), sep="\n")
    console().print(f"Peak memory, the model included: {memory / 2**30:.2f} GiB.")


def _texts(path: Path | None, count: int) -> list[str]:
    """Return `count` texts: the lines of a file that are not blank, or sentences, repeated."""
    lines = list(SENTENCES) if path is None else list(read_lines(path))
    texts = [line for line in lines if line.strip()]
    if not texts:
        raise InvalidInput(f"there is nothing to translate in {path}: all lines are blank")
    return list(islice(cycle(texts), count))


def _machine(device: torch.device) -> str:
    """Return what computes, and how a CPU's threads wait for each other."""
    names = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
    waiting = [f"{name}={os.environ[name]}" for name in names if name in os.environ]
    return ", ".join([machine_name(device), *(waiting if device.type == "cpu" else [])])
