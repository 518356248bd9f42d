"""npad beside eole, in turn and in one run: tokens of the best hypothesis a second, each at its own best batch size.

    python3 -m venv eole-venv
    eole-venv/bin/pip install torch==2.13.0         first and pinned: otherwise gigabytes of CUDA come
    eole-venv/bin/pip install eole==0.6.4 aiohttp
    python benchmarks/peers.py --eole eole-venv/bin/python --json peers.json

Three engines on the same two cores in float32: eole in a process of its own (`peers_eole.py`, which says how its model
differs), npad's model as it was trained ("plain"), and as npad decodes it ("npad"). Models are untrained and outputs of
a fixed length, so that all do the same work: 200 sentences of 25 symbols into 25. Loading is not timed, nor is text.

First each engine tries every batch size once, all engines in turn; then each repeats its best, again in turn. Rates are
medians of the repeats; a ratio is the median of the ratios within a round. Runs of which others took part of the cores
are told (Linux); with --quiet 0.1 they wait for their moment and are repeated. With --threads 1 seconds are the CPU's,
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
from npad.models.cgru.model import AttentionModel

SIZES = {
    "units": 1024,
    "embedding": 512,
    "symbols": 8000,
    "sentences": 200,
    "length": 25,
    "threads": 2,
}
LOG = Console(stderr=True)


class Engine(Protocol):
    parameters: int
    process: int  # its id

    def seconds(self, beam: int, batch: int, sentences: int) -> float:
        """How long the search takes for the first sentences, `batch` at a time; a beam of 1 is greedy search."""


class Here:
    """A model of npad's, in this process."""

    process = os.getpid()

    def __init__(
        self, model: Any, parameters: int, sources: Sequence[list[int]], length: int
    ) -> None:
        self.model, self.parameters, self.sources, self.length = model, parameters, sources, length
        self.clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter

    def seconds(self, beam: int, batch: int, sentences: int) -> float:
        decoder = Greedy() if beam == 1 else Beam(beam)
        some = self.sources[:sentences]
        began = self.clock()
        found = [
            decode(self.model, some[i : i + batch], decoder, self.length)
            for i in range(0, sentences, batch)
        ]
        took = self.clock() - began
        sizes = [len(best.tokens) for one in found for best, *_ in one]
        if sizes != [self.length] * sentences:
            raise RuntimeError(
                f"{sentences} outputs of {self.length} symbols were due, not of {sizes}"
            )
        return took


class Elsewhere:
    """A peer, in a process of its own that answers one JSON line with another."""

    def __init__(self, python: str, script: str, asked: dict[str, int]) -> None:
        command = [python, str(Path(__file__).with_name(script))]
        self.log = Path(tempfile.gettempdir(), script).with_suffix(".log")
        with self.log.open("w") as log:
            self.pipes = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
            )
        self.process = self.pipes.pid
        self.parameters = self._ask(asked)["parameters"]

    def seconds(self, beam: int, batch: int, sentences: int) -> float:
        return float(self._ask({"beam": beam, "batch": batch, "sentences": sentences})["seconds"])

    def _ask(self, what: dict[str, int]) -> Any:
        assert self.pipes.stdin
        assert self.pipes.stdout
        self.pipes.stdin.write(json.dumps(what) + "\n")
        self.pipes.stdin.flush()
        line = self.pipes.stdout.readline()
        if not line:
            sys.exit(f"the peer ended without an answer; see {self.log}")
        return json.loads(line)


def engines(asked: argparse.Namespace, sizes: dict[str, int]) -> dict[str, Engine]:
    torch.manual_seed(0)
    plain = AttentionModel(
        asked.symbols, asked.symbols, asked.units, asked.embedding, initialisation="glorot"
    ).eval()
    with torch.no_grad():
        plain.logits.bias[plain.special.eos] = -1e4  # never written
    sources = torch.randint(
        1, asked.symbols, (asked.sentences, asked.length - 1)
    ).tolist()  # npad adds the end symbol
    models = {"plain": plain, "npad": Prepared(plain)}
    made: dict[str, Engine] = {
        name: Here(model, plain.size(), sources, asked.length) for name, model in models.items()
    }
    if asked.eole:
        made = {"eole": Elsewhere(asked.eole, "peers_eole.py", sizes), **made}
    return made


def compare(
    made: dict[str, Engine], beam: int, batches: Sequence[int], asked: argparse.Namespace
) -> dict[str, Any]:
    """Each engine's batch size and its seconds in every round."""
    for engine in made.values():
        engine.seconds(beam, min(batches), min(batches))  # warm
    tried: dict[str, dict[int, float]] = {name: {} for name in made}
    for batch in batches:
        for name, engine in made.items():
            tried[name][batch] = measured(name, engine, beam, batch, max(batches), asked)
    best = {name: min(each, key=each.__getitem__) for name, each in tried.items()}
    rounds: dict[str, list[float]] = {name: [] for name in made}
    for _ in range(asked.repeats):
        for name, engine in made.items():
            rounds[name].append(measured(name, engine, beam, best[name], asked.sentences, asked))
    return {
        name: {"batch": best[name], "seconds": rounds[name], "tried": tried[name]} for name in made
    }


def measured(
    name: str, engine: Engine, beam: int, batch: int, sentences: int, asked: argparse.Namespace
) -> float:
    """Seconds for some sentences, in as quiet a run as is asked for."""
    while True:
        while asked.quiet < math.inf and share(engine, lambda: time.sleep(1))[1] > asked.quiet:
            pass
        seconds, taken = share(engine, lambda: engine.seconds(beam, batch, sentences))
        rate = sentences * asked.length / seconds
        said = f"beam {beam:2}, {batch:3} at a time, {name:5}: {rate:6,.0f} tokens/s; others took {taken:.2f} cores"
        LOG.print(said, highlight=False)
        if taken <= asked.quiet:
            return seconds


def share(engine: Engine, what: Callable[[], Any]) -> tuple[Any, float]:
    """What something returns, and how many cores others took meanwhile."""
    began, before = time.perf_counter(), others(engine)
    returned = what()
    return returned, (others(engine) - before) / (time.perf_counter() - began)


def others(engine: Engine) -> float:
    """Seconds of CPU that were not the engine's, since the machine was started."""
    if not Path("/proc/stat").exists():
        return 0.0
    user, nice, system, _, _, *rest = map(
        int, Path("/proc/stat").read_text().split("\n")[0].split()[1:9]
    )
    own = Path(f"/proc/{engine.process}/stat").read_text().rsplit(")", 1)[1].split()[11:13]
    return (user + nice + system + sum(rest) - sum(map(int, own))) / os.sysconf("SC_CLK_TCK")


def ratio(found: dict[str, Any], other: str) -> float:
    """How many times as fast npad was: the median of the rounds."""
    return statistics.median(
        a / b for a, b in zip(found[other]["seconds"], found["npad"]["seconds"], strict=True)
    )


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
        "--quiet", type=float, default=math.inf, help="cores that others may take; more: run again"
    )
    parser.add_argument("--eole", metavar="PYTHON", help="the interpreter that has eole")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was measured")
    asked = parser.parse_args()
    sizes = {name: getattr(asked, name) for name in SIZES}
    torch.set_num_threads(asked.threads)
    made = engines(asked, sizes)
    tokens = asked.sentences * asked.length
    title = ", ".join(f"{name} {value}" for name, value in sizes.items())
    table = Table("strategy", title=f"Tokens/s of the best hypothesis (batch size)\n{title}")
    peers = [name for name in made if name != "npad"]
    for name in made:
        table.add_column(f"{name}\n{made[name].parameters / 1e6:.1f} M", justify="right")
    for name in peers:
        table.add_column(f"npad ÷\n{name}", justify="right")
    results = []
    for beam in asked.beams:
        batches = asked.batches or ([25, 50, 100, 200] if beam == 1 else [10, 25, 50, 100])
        found = compare(made, beam, [size for size in batches if size <= asked.sentences], asked)
        rates = {name: tokens / statistics.median(each["seconds"]) for name, each in found.items()}
        ratios = {name: ratio(found, name) for name in peers}
        cells = [f"{rates[name]:,.0f} ({found[name]['batch']})" for name in made]
        table.add_row(
            "greedy" if beam == 1 else f"beam {beam}",
            *cells,
            *(f"{one:.2f}" for one in ratios.values()),
        )
        results.append({"beam": beam, "tokens/s": rates, "ratio": ratios, "engines": found})
    Console().print(table)
    if asked.json:
        parameters = {name: engine.parameters for name, engine in made.items()}
        asked.json.write_text(
            json.dumps({**sizes, "parameters": parameters, "results": results}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
