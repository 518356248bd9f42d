"""npad beside eole in one run: tokens per second, each engine at its best batch size.

    python3 -m venv eole-venv
    eole-venv/bin/pip install torch==2.13.0     first and pinned, or pip fetches gigabytes of CUDA
    eole-venv/bin/pip install eole==0.6.4 aiohttp
    python benchmarks/peers.py --eole eole-venv/bin/python --json peers.json

Three engines share two cores in float32: eole in a separate process (`peers_eole.py` says how its
model differs), npad's plain model ("plain"), and the prepared model that npad decodes with
("npad"). Models are untrained and outputs have one length, so that all do the same work: 200
sentences of 25 tokens into 25. Loading and tokenising are not timed.

First each engine tries every batch size once, all engines in turn; then each repeats its best,
again in turn. Rates are medians of the repeats; a ratio is the median of the ratios within a round.
The log shows how much of the cores other processes took (Linux); with --quiet 0.1 a run waits until
the machine is idle and is repeated if it was disturbed. With --threads 1 seconds are CPU seconds,
which a busy machine changes little. Without --eole the other two are compared.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from rich.console import Console
from rich.table import Table

from npad import Beam, Greedy, decode
from npad.models.cgru.fast import Prepared
from workload import untrained

SIZES = {
    "units": 1024,
    "embedding": 512,
    "vocabulary": 8000,
    "sentences": 200,
    "length": 25,
    "threads": 2,
}
LOG = Console(stderr=True)


class Engine(Protocol):
    parameters: int
    process: int  # process id

    def seconds(self, beam: int, batch: int, sentences: int) -> float:
        """Return the seconds to decode the first sentences, `batch` at a time.

        A beam of 1 is greedy search.
        """


class LocalEngine:
    """One of npad's models, in this process."""

    process = os.getpid()

    def __init__(
        self, model: Any, parameters: int, sources: Sequence[list[int]], length: int
    ) -> None:
        self.model, self.parameters, self.sources, self.length = model, parameters, sources, length
        self.clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter

    def seconds(self, beam: int, batch: int, sentences: int) -> float:
        decoder = Greedy() if beam == 1 else Beam(beam)
        sources = self.sources[:sentences]
        start = self.clock()
        batches = [
            decode(self.model, sources[i : i + batch], decoder, self.length)
            for i in range(0, sentences, batch)
        ]
        elapsed = self.clock() - start
        lengths = [len(best.tokens) for nbest_lists in batches for best, *_ in nbest_lists]
        if lengths != [self.length] * sentences:
            raise RuntimeError(
                f"expected {sentences} outputs of {self.length} tokens, not of {lengths}"
            )
        return elapsed


class RemoteEngine:
    """A peer in a separate process that answers each JSON line with another."""

    def __init__(self, python: str, script: str, sizes: dict[str, Any]) -> None:
        command = [python, str(Path(__file__).with_name(script))]
        self.log = Path(tempfile.gettempdir(), script).with_suffix(".log")
        with self.log.open("a") as log:
            self.pipes = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
            )
        self.process = self.pipes.pid
        self.started = self.request(sizes)
        self.parameters = int(self.started["parameters"])

    def seconds(self, beam: int, batch: int, sentences: int) -> float:
        reply = self.request({"beam": beam, "batch": batch, "sentences": sentences})
        return float(reply["seconds"])

    def request(self, message: dict[str, Any]) -> Any:
        """Return the peer's answer to a message."""
        assert self.pipes.stdin
        assert self.pipes.stdout
        self.pipes.stdin.write(json.dumps(message) + "\n")
        self.pipes.stdin.flush()
        line = self.pipes.stdout.readline()
        if not line:
            sys.exit(f"the peer ended without an answer; see {self.log}")
        return json.loads(line)


def start_engines(arguments: argparse.Namespace, sizes: dict[str, int]) -> dict[str, Engine]:
    plain = untrained(arguments.units, arguments.embedding, arguments.vocabulary)
    shape = (arguments.sentences, arguments.length - 1)  # npad appends the end token
    sources = torch.randint(1, arguments.vocabulary, shape).tolist()
    models = {"plain": plain, "npad": Prepared(plain)}
    engines: dict[str, Engine] = {
        name: LocalEngine(model, plain.size(), sources, arguments.length)
        for name, model in models.items()
    }
    if arguments.eole:
        engines = {"eole": RemoteEngine(arguments.eole, "peers_eole.py", sizes), **engines}
    return engines


def compare(
    engines: dict[str, Engine], beam: int, batches: Sequence[int], arguments: argparse.Namespace
) -> dict[str, Any]:
    """Return each engine's best batch size, its seconds in every round, and those of the trials."""
    for engine in engines.values():
        engine.seconds(beam, min(batches), min(batches))  # warm up
    trials: dict[str, dict[int, float]] = {name: {} for name in engines}
    for batch in batches:
        for name, engine in engines.items():
            trials[name][batch] = measure(name, engine, beam, batch, max(batches), arguments)
    best = {name: min(seconds, key=seconds.__getitem__) for name, seconds in trials.items()}
    rounds: dict[str, list[float]] = {name: [] for name in engines}
    for _ in range(arguments.repeats):
        for name, engine in engines.items():
            seconds = measure(name, engine, beam, best[name], arguments.sentences, arguments)
            rounds[name].append(seconds)
    return {
        name: {"batch": best[name], "seconds": rounds[name], "tried": trials[name]}
        for name in engines
    }


def measure(
    name: str, engine: Engine, beam: int, batch: int, sentences: int, arguments: argparse.Namespace
) -> float:
    """Return the seconds of a run during which others took at most `--quiet` cores."""
    while True:
        if arguments.quiet < math.inf:
            while with_load(engine, lambda: time.sleep(1))[1] > arguments.quiet:
                pass
        seconds, load = with_load(engine, lambda: engine.seconds(beam, batch, sentences))
        rate = sentences * arguments.length / seconds
        LOG.print(
            f"beam {beam:2}, {batch:3} at a time, {name:5}: {rate:6,.0f} tokens/s; "
            f"others took {load:.2f} cores",
            highlight=False,
        )
        if load <= arguments.quiet:
            return seconds


def with_load(engine: Engine, work: Callable[[], Any]) -> tuple[Any, float]:
    """Return the result of `work`, and how many cores other processes took meanwhile."""
    start, cpu_start = time.perf_counter(), others_cpu_seconds(engine)
    result = work()
    cpu_seconds = others_cpu_seconds(engine) - cpu_start
    return result, cpu_seconds / (time.perf_counter() - start)


def others_cpu_seconds(engine: Engine) -> float:
    """Return the CPU seconds since boot of all processes but the engine's; 0 without /proc."""
    if not Path("/proc/stat").exists():
        return 0.0
    user, nice, system, _, _, *interrupts = map(
        int, Path("/proc/stat").read_text().split("\n")[0].split()[1:9]
    )
    fields = Path(f"/proc/{engine.process}/stat").read_text().rsplit(")", 1)[1].split()
    engine_ticks = sum(map(int, fields[11:13]))  # utime, stime
    ticks = user + nice + system + sum(interrupts) - engine_ticks
    return ticks / os.sysconf("SC_CLK_TCK")


def ratio(results: dict[str, Any], peer: str) -> float:
    """Return how many times as fast as a peer npad was: the median of the rounds."""
    rounds = zip(results[peer]["seconds"], results["npad"]["seconds"], strict=True)
    return statistics.median(peer_seconds / npad_seconds for peer_seconds, npad_seconds in rounds)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, value in SIZES.items():
        parser.add_argument(f"--{name}", type=int, default=value, help=f"default {value}")
    parser.add_argument("--repeats", type=int, default=3, help="default 3")
    parser.add_argument(
        "--beams", type=int, nargs="+", default=[1, 5, 10], help="1 is greedy; default 1 5 10"
    )
    parser.add_argument(
        "--batches",
        type=int,
        nargs="+",
        help="default 25 50 100 200 sentences, of a beam 10 25 50 100",
    )
    parser.add_argument(
        "--quiet",
        type=float,
        default=math.inf,
        help="most cores that others may take; a busier run is repeated",
    )
    parser.add_argument("--eole", metavar="PYTHON", help="the interpreter that has eole")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results as JSON")
    arguments = parser.parse_args()
    sizes = {name: getattr(arguments, name) for name in SIZES}
    torch.set_num_threads(arguments.threads)
    engines = start_engines(arguments, sizes)
    tokens = arguments.sentences * arguments.length
    title = ", ".join(f"{name} {value}" for name, value in sizes.items())
    table = Table("strategy", title=f"Tokens/s of the best hypothesis (batch size)\n{title}")
    peers = [name for name in engines if name != "npad"]
    for name in engines:
        table.add_column(f"{name}\n{engines[name].parameters / 1e6:.1f} M", justify="right")
    for name in peers:
        table.add_column(f"npad ÷\n{name}", justify="right")
    results = []
    for beam in arguments.beams:
        batches = arguments.batches or ([25, 50, 100, 200] if beam == 1 else [10, 25, 50, 100])
        batches = [batch for batch in batches if batch <= arguments.sentences]
        measured = compare(engines, beam, batches, arguments)
        rates = {
            name: tokens / statistics.median(result["seconds"]) for name, result in measured.items()
        }
        ratios = {name: ratio(measured, name) for name in peers}
        cells = [f"{rates[name]:,.0f} ({measured[name]['batch']})" for name in engines]
        table.add_row(
            "greedy" if beam == 1 else f"beam {beam}",
            *cells,
            *(f"{value:.2f}" for value in ratios.values()),
        )
        results.append({"beam": beam, "tokens/s": rates, "ratio": ratios, "engines": measured})
    Console().print(table)
    if arguments.json:
        parameters = {name: engine.parameters for name, engine in engines.items()}
        arguments.json.write_text(
            json.dumps({**sizes, "parameters": parameters, "results": results}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
