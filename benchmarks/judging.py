"""What re-scoring takes beside the chains on a trained model, where hypotheses share prefixes: the one that ships.

python benchmarks/judging.py TEXT                       English, a sentence a line; test.en.xz of Tatoeba, say
python benchmarks/judging.py TEXT --sentences 512 --device cuda --precision bfloat16

Model calls are rows through one step, a sentence; "shared" is what the judge would take if each prefix were read once
and nothing else. Milliseconds are for all sentences, the median of three; "all" is from text to text.
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from npad import NPAD, Greedy, Noise, load
from npad.engine.cost import count_calls
from npad.engine.devices import device_named
from npad.experiments.speed import clock
from npad.rescoring.strategies import rescore
from npad.search.hypotheses import Hypotheses
from npad.search.rows import Problems
from npad.text.files import read_lines


def prefixes(found: Hypotheses) -> int:
    """How many distinct ones there are, of all sentences."""
    read = 0
    for hypotheses in found.to_lists():
        ends = [(one.tokens, len(one.tokens) + one.finished) for one in hypotheses]
        read += len({tokens[:t] for tokens, most in ends for t in range(most)})
    return read


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("text", type=Path)
    parser.add_argument("--device", default="auto")
    parser.add_argument(
        "--precision", default="float32", help="of the noisy chains; default float32"
    )
    for name, value in {"sentences": 128, "chains": 50, "length": 60}.items():
        parser.add_argument(f"--{name}", type=int, default=value, help=f"default {value}")
    asked = parser.parse_args()
    device = device_named(asked.device)
    translator = load("en-de", device, asked.precision)
    texts = list(read_lines(asked.text))[: asked.sentences]
    source, model = translator.encode(texts), translator.model
    table = Table(
        title=f"{len(texts)} sentences × {asked.chains} chains, {asked.precision}, {device}"
    )
    for column in (
        "σ₀",
        "distinct",
        "calls",
        "re-scored",
        "shared",
        "chains, ms",
        "judge, ms",
        "share",
        "all, ms",
    ):
        table.add_column(column, justify="right")
    for sigma in (0.1, 0.3, 0.5):
        decoder = NPAD(Greedy(), asked.chains, Noise(sigma))
        with torch.inference_mode():
            ids = torch.arange(len(texts), device=device)
            problems, state = (
                Problems(ids, torch.zeros_like(ids), asked.length),
                model.start(source),
            )
            runner, chains = decoder._runner(), decoder._chains()
            with count_calls() as calls:
                found = runner.run(model, state, problems, chains).distinct().hypotheses
                rescore(model, state, found)
            search = clock(partial(runner.run, model, state, problems, chains), 3, device)
            judging = clock(partial(rescore, model, state, found), 3, device)
        whole = clock(
            lambda d=decoder: translator.translate(texts, d, asked.length, d.rows * len(texts)),
            3,
            device,
        )
        rows = [
            one / len(texts)
            for one in (int(found.exists.sum()), calls.search, calls.rescoring, prefixes(found))
        ]
        search_ms, judge_ms, whole_ms = (f"{1e3 * one:,.0f}" for one in (search, judging, whole))
        cells = (
            *(f"{one:,.0f}" for one in rows),
            search_ms,
            judge_ms,
            f"{judging / search:.0%}",
            whole_ms,
        )
        table.add_row(f"{sigma:g}", *cells)
    Console().print(table)


if __name__ == "__main__":
    main()
