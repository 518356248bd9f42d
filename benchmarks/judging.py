"""Cost of re-scoring beside the chains, on the model that ships, where hypotheses share prefixes.

python benchmarks/judging.py TEXT           English, a sentence per line; test.en.xz of Tatoeba, say
python benchmarks/judging.py TEXT --sentences 512 --device cuda --precision bfloat16

Model calls are rows through one step, per sentence; "shared" is what re-scoring would take if each
prefix were read exactly once. Milliseconds are for all sentences, the median of three after six
calls that warm up, since steps are captured after a few eager calls. "kernels" is the part of them
in which a GPU works; "all" is from text to text.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch.profiler import ProfilerActivity, profile

from npad import NPAD, Greedy, Noise, load
from npad.engine.cost import count_calls
from npad.engine.devices import device_named
from npad.hypotheses import Hypotheses
from npad.rescoring.strategies import rescore
from npad.rows import Problems
from npad.text.files import read_lines
from workload import clock as median_seconds

WARMUPS, REPEATS = 6, 3


def clock(work: Callable[[], Any], device: torch.device) -> float:
    """Return seconds, the median of some calls after others."""
    for _ in range(WARMUPS if device.type == "cuda" else 0):
        work()
    return median_seconds(work, REPEATS, device)


def kernels_ms(work: Callable[[], Any], device: torch.device) -> str:
    """Return milliseconds that the kernels of a GPU take, without the host's work between them."""
    if device.type != "cuda":
        return "–"
    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        work()
        torch.cuda.synchronize(device)
    return f"{sum(kernel.device_time_total for kernel in profiled.key_averages()) / 1e3:,.1f}"


def count_prefixes(candidates: Hypotheses) -> int:
    """Return the number of distinct prefixes within sentences, summed over sentences."""
    count = 0
    for hypotheses in candidates.to_lists():
        prefixes = {
            hypothesis.tokens[:t]
            for hypothesis in hypotheses
            for t in range(len(hypothesis.tokens) + hypothesis.finished)
        }
        count += len(prefixes)
    return count


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
    arguments = parser.parse_args()
    device = device_named(arguments.device)
    translator = load("en-de", device, arguments.precision)
    texts = list(read_lines(arguments.text))[: arguments.sentences]
    source, model = translator.encode(texts), translator.model
    table = Table(
        title=f"{len(texts)} sentences × {arguments.chains} chains, {arguments.precision}, {device}"
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
        "kernels: chains",
        "judge",
        "all, ms",
    ):
        table.add_column(column, justify="right")
    for sigma in (0.1, 0.3, 0.5):
        decoder = NPAD(Greedy(), arguments.chains, Noise(sigma))
        with torch.inference_mode():
            ids = torch.arange(len(texts), device=device)
            problems = Problems(ids, torch.zeros_like(ids), arguments.length)
            state = model.start(source)
            runner, chains = decoder.runner, decoder.numbered()
            with count_calls() as calls:
                candidates = runner.run(model, state, problems, chains).distinct().hypotheses
                rescore(model, state, candidates)
            run_chains = partial(runner.run, model, state, problems, chains)
            judge = partial(rescore, model, state, candidates)
            search, rescoring = clock(run_chains, device), clock(judge, device)
            kernels = [kernels_ms(work, device) for work in (run_chains, judge)]
        rows = decoder.rows * len(texts)
        total = clock(partial(translator.translate, texts, decoder, arguments.length, rows), device)
        distinct, prefixes = int(candidates.exists.sum()), count_prefixes(candidates)
        counts = (distinct, calls.search, calls.rescoring, prefixes)
        search_ms, rescoring_ms, total_ms = (
            f"{1e3 * seconds:,.0f}" for seconds in (search, rescoring, total)
        )
        cells = (
            *(f"{count / len(texts):,.0f}" for count in counts),
            search_ms,
            rescoring_ms,
            f"{rescoring / search:.0%}",
            *kernels,
            total_ms,
        )
        table.add_row(f"{sigma:g}", *cells)
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
