"""Workers against the in-process run: throughput, overhead, memory, kills, and divided chains.

    python benchmarks/scale.py                       all parts, with processes and with Ray
    python benchmarks/scale.py overhead --sentences 10000 --rounds 3
    python benchmarks/scale.py throughput --engines processes --greedy

The decoder is NPAD-10 over greedy search, or greedy search itself for throughput and overhead.

throughput  sentences/s of one and of two single-threaded workers, and their ratio.
overhead    seconds of one single-threaded worker against the in-process run on one thread, both for
            the workers alone and for a whole corpus with its manifest, and outputs that differ.
costs       seconds until a worker is ready (start-up), and of the driver for each sentence: what it
            reads, sends, receives, checks and writes, with a worker that answers at once.
chains      seconds for one sentence, its chains on one worker and divided over two.
memory      peak memory of the driver (VmHWM) by size of the corpus; the toy, so that it is quick.
kills       seconds with ten workers killed −9, and without; what was lost or doubled: nothing.

The model is the one that ships; sentences are put together from a few words, all different. Workers
are started before the clock; medians over rounds, the variants in turn. The machine must be
otherwise idle, with two free cores. The last lines are the figures as JSON, for scale_model.py.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from npad import NPAD, Greedy, Noise, Translation, load
from npad.hypotheses import Hypothesis
from npad.scale import (
    Corpus,
    Decoding,
    Failed,
    Local,
    ModelSpec,
    Processes,
    RayCluster,
    Result,
    Unit,
    Workers,
    translate_corpus,
)
from npad.scale.pool import Pool
from npad.scale.units import unit_size
from npad.search.decoder import Decoder

SPEC = ModelSpec("en-de", "cpu", threads=1)
DECODER = NPAD(Greedy(), chains=10, noise=Noise(0.3))
SUBJECTS = ("I", "You", "We", "They", "Tom", "Mary", "The teacher", "My brother", "Our neighbour")
VERBS = ("saw", "bought", "liked", "needed", "found", "sold", "lost", "wanted", "never had")
OBJECTS = ("a red car", "the house", "two books", "some bread", "nothing at all", "the old dog")
ENDS = ("yesterday", "in the morning", "at school", "with a friend", "for his sister", "again")
PARTS = ("throughput", "overhead", "costs", "chains", "memory", "kills")
out = Console(highlight=False)


def sentences(count: int) -> list[str]:
    """Sentences of different words and lengths, the same ones in every run."""
    rng = random.Random(1)
    made = []
    for number in range(count):
        clauses = [
            " ".join(rng.choice(words) for words in (SUBJECTS, VERBS, OBJECTS, ENDS))
            for _ in range(1 + (number % 3 == 0))
        ]
        made.append(f"{' and '.join(clauses)}, {number}.")
    return made


def pool_of(name: str, workers: int) -> Pool:
    return Processes(SPEC, workers) if name == "processes" else RayCluster(SPEC, None, workers)


def started(pool: Pool) -> Pool:
    """Wait until every worker has loaded its model, and warm them up."""
    pool.start()
    decoding, texts = Decoding(DECODER), sentences(8)
    while len(pool.ready) < pool.count:
        outputs(pool, texts, decoding, 1)
    outputs(pool, sentences(64), decoding, 16)
    return pool


def outputs(
    workers: Workers, texts: list[str], decoding: Decoding, size: int, parts: int = 1
) -> list[str]:
    return texts_of(workers.run(texts, decoding, size, parts, alternatives=0))


def texts_of(results: Iterator[Result]) -> list[str]:
    return [
        outcome.reason if isinstance(outcome, Failed) else outcome.text
        for result in results
        for outcome in result.outcomes
    ]


def timed(run: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    value = run()
    return time.perf_counter() - start, value


def in_turn(variants: dict[str, Callable[[], Any]], rounds: int) -> dict[str, tuple[float, Any]]:
    """Median seconds and the last value of each variant, run in turn."""
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    values = {}
    for _ in range(rounds):
        for name, run in variants.items():
            elapsed, values[name] = timed(run)
            seconds[name].append(elapsed)
    return {name: (statistics.median(seconds[name]), values[name]) for name in variants}


def throughput(name: str, decoder: Decoder, count: int, rounds: int) -> dict[str, float]:
    texts, decoding = sentences(count), Decoding(decoder)
    size = unit_size(decoding, 2, count)
    seconds = {}
    for workers in (1, 2):  # not in turn: idle actors would hold the cluster's CPUs
        with started(pool_of(name, workers)) as pool:
            run = partial(outputs, pool, texts, decoding, size)
            runs = [timed(run)[0] for _ in range(rounds)]
        seconds[workers] = statistics.median(runs)
        out.print(f"{name}, {workers} workers: {count / seconds[workers]:,.1f} sentences/s")
    ratio = seconds[1] / seconds[2]
    out.print(f"{name}: two workers give {ratio:.3f} × one")
    return {"rate": count / seconds[1], "ratio": ratio}


def overhead(names: list[str], decoder: Decoder, count: int, rounds: int) -> dict[str, float]:
    texts, decoding = sentences(count), Decoding(decoder)
    size = unit_size(decoding, 1)
    translator = load("en-de", "cpu")
    with ExitStack() as stack, tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "in"
        source.write_text("\n".join(texts) + "\n")
        variants: dict[str, Callable[[], Any]] = {
            "in process": lambda: [t.text for t in translator.stream(texts, decoder, window=size)]
        }
        for name in names:
            pool = stack.enter_context(started(pool_of(name, 1)))

            def corpus(pool: Pool = pool) -> list[str]:
                output = Path(folder) / "out"
                translate_corpus(Corpus(source, output), pool, SPEC, decoding, unit=size)
                return output.read_text().splitlines()

            alone = partial(outputs, pool, texts, decoding, size)
            variants |= {name: alone, f"{name}, corpus": corpus}
        measured = in_turn(variants, rounds)
    base, expected = measured["in process"]
    found = {}
    for name, (seconds, found_texts) in measured.items():
        differing = sum(a != b for a, b in zip(found_texts, expected, strict=True))
        found[name] = seconds / base - 1
        out.print(
            f"{name}: {seconds:.2f} s for {count:,} sentences, {found[name]:+.1%}; "
            f"{differing} outputs differ (near-ties)"
        )
    return found


class Instant(Local):
    """A worker that answers at once: what remains is the driver's own work."""

    def start(self) -> None:
        self.answer = Translation("Das ist ein Satz.", -1.0, Hypothesis((), -1.0, True), "")

    def map(self, units: Any) -> Iterator[Result]:
        self.start()
        import pickle

        for unit in units:
            received: Unit = pickle.loads(pickle.dumps(unit))
            result = Result(unit.first, (self.answer,) * len(received.texts), "en-de")
            yield pickle.loads(pickle.dumps(result))


def costs(names: list[str], count: int) -> dict[str, float]:
    found = {}
    for name in names:
        with pool_of(name, 1) as pool:
            found[f"startup {name}"] = timed(pool.start)[0]
        out.print(f"{name}: a worker is ready after {found[f'startup {name}']:.1f} s")
    with tempfile.TemporaryDirectory() as folder, Instant(SPEC) as workers:
        source = Path(folder) / "in"
        source.write_text("\n".join(sentences(count)) + "\n")
        corpus = Corpus(source, Path(folder) / "out")
        decoding = Decoding(DECODER)
        seconds, _ = timed(lambda: translate_corpus(corpus, workers, SPEC, decoding, unit=800))
    found["driver"] = seconds / count
    out.print(
        f"driver: {1e6 * found['driver']:.1f} µs a sentence, {count / seconds:,.0f} sentences/s"
    )
    return found


def divided_chains(name: str, rounds: int) -> dict[str, float]:
    texts, found = sentences(8), {}
    with started(pool_of(name, 2)) as pool:
        for count in (10, 50, 200, 800):
            decoding = Decoding(NPAD(Greedy(), chains=count, noise=Noise(0.3)))

            def run(parts: int, decoding: Decoding = decoding) -> list[str]:
                return [t for text in texts for t in outputs(pool, [text], decoding, 1, parts)]

            measured = in_turn({"1": lambda: run(1), "2": lambda: run(2)}, rounds)
            whole, halves = (measured[parts][0] / len(texts) for parts in "12")
            found[str(count)] = whole / halves
            same = measured["1"][1] == measured["2"][1]
            out.print(
                f"{name}, {count} chains of one sentence: {1e3 * whole:.1f} ms on one worker, "
                f"{1e3 * halves:.1f} ms on two, {found[str(count)]:.2f} ×; same outputs: {same}"
            )
    return found


def driver_memory(name: str, sizes: list[int]) -> dict[str, float]:
    found = {}
    code = (
        "import sys; from npad.cli.main import main\n"
        "if __name__ == '__main__':\n"
        "    try: main()\n"
        "    finally:\n"
        "        status = open('/proc/self/status').read()\n"
        "        print('peak', status.split('VmHWM:')[1].split()[0])\n"
    )
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "npad_driver.py"
        program.write_text(code)
        for size in sizes:
            source = Path(folder) / "in"
            with open(source, "w") as file:
                for number in range(size):
                    file.write(("danke", "na ja", "das ist mir wurst")[number % 3] + "\n")
            command = [
                sys.executable,
                program,
                "translate",
                "-m",
                "toy",
                "-d",
                "greedy",
                "-i",
                source,
            ]
            command += [
                "-o",
                Path(folder) / "out",
                "--engine",
                name,
                "--workers",
                "1",
                "--window",
                "500",
            ]
            done = subprocess.run(
                [*map(str, command), "--device", "cpu"], capture_output=True, text=True, check=True
            )
            found[f"{size}"] = int(done.stdout.split("peak")[1]) / 1024
            out.print(f"{name}, driver, {size:,} lines: {found[f'{size}']:.1f} MiB at its peak")
    return found


def kills(name: str, count: int) -> dict[str, float]:
    texts, decoding = sentences(count), Decoding(DECODER)
    size = max(1, count // 60)
    with started(pool_of(name, 2)) as pool:
        quiet, expected = timed(lambda: outputs(pool, texts, decoding, size))

        def killing() -> tuple[list[str], int]:
            translated: list[str] = []
            killed: set[int] = set()
            for result in pool.run(texts, decoding, size, alternatives=0):
                translated += texts_of(iter([result]))
                alive = {pool.ready[worker].pid for worker in pool.busy} - killed
                if len(killed) < 10 and alive:
                    os.kill(min(alive), signal.SIGKILL)
                    killed.add(min(alive))
            return translated, len(killed)

        seconds, (translated, killed) = timed(killing)
    differing = sum(a != b for a, b in zip(translated, expected, strict=True))
    out.print(
        f"{name}: {killed} workers killed in {count:,} sentences: {seconds:.1f} s, {quiet:.1f} s "
        f"without; {len(translated):,} outputs, {differing} differ (near-ties)"
    )
    return {"killed": killed, "seconds": seconds, "quiet": quiet, "differing": differing}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", default=PARTS, help=", ".join(PARTS))
    parser.add_argument("--greedy", action="store_true", help="not NPAD-10: greedy search")
    parser.add_argument("--engines", nargs="+", default=["processes", "ray"])
    parser.add_argument("--sentences", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--lines", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    arguments = parser.parse_args()
    decoder = Greedy() if arguments.greedy else DECODER
    torch.set_num_threads(1)
    count, rounds, figures = arguments.sentences, arguments.rounds, {}
    for part in arguments.parts:
        if part == "overhead":
            figures[part] = overhead(arguments.engines, decoder, count, rounds)
        elif part == "costs":
            figures[part] = costs(arguments.engines, 10 * count)
        else:
            runs: dict[str, Callable[[str], dict[str, float]]] = {
                "throughput": lambda name: throughput(name, decoder, count, rounds),
                "chains": lambda name: divided_chains(name, rounds),
                "memory": lambda name: driver_memory(name, arguments.lines),
                "kills": lambda name: kills(name, count // 4),
            }
            figures |= {f"{part} {name}": runs[part](name) for name in arguments.engines}
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
