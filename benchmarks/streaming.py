"""How the cost of decoding grows with sentences, chains and lengths, and the memory of streaming.

python benchmarks/streaming.py [--sentences 1000,10000,100000] [--repeats 3]

Weights are random and the end token is never generated, so that every sentence is the same work.
Sentences go through `npad translate` as a process, with a model of 32 units and NPAD over greedy
search; the cost of a single sentence is subtracted as start-up. Memory is the process's peak
anonymous memory (RssAnon in /proc). Chains and lengths are measured within this process, with a
model of 256 units, 1,024 rows at a time, medians of rounds in turn. All run on one thread and are
measured in CPU seconds, which other load on the machine hardly changes. The exponent is the slope
of a line through the logarithms: 1 is linear; it is lower where part of the cost is constant, as
the encoder's is with chains.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from npad import NPAD, Greedy, Noise, decode
from npad.experiments.speed import untrained
from npad.models.cgru.fast import prepared
from npad.storage import checkpoint
from npad.text.subwords import Subwords

CHAINS, LENGTHS = (1, 2, 5, 10, 25, 50), (10, 20, 40, 80)
SMALL, MIDDLE = (32, 300), (256, 4000)  # units, vocabulary
LENGTH, ROWS, SENTENCES = 10, 1024, 128
DECODER = ("--decoder", "npad", "--chains", "2", "--sigma", "0.3", "--max-length", str(LENGTH))


def sentence(number: int) -> str:
    """Return the sentence of a number: four to twelve made-up words."""
    generator = random.Random(number)
    words = (
        "".join(generator.choices("bdgklmnprstvz", k=2) + generator.choices("aeiou"))
        for _ in range(generator.randint(4, 12))
    )
    return " ".join(words)


def save_model(folder: Path, units: int, vocabulary: int) -> None:
    subwords = Subwords.learn(map(sentence, range(1000)), vocabulary)
    checkpoint.save(folder, untrained(units, units, subwords.size), (subwords, subwords), {})


def time_translate(model: Path, text: Path) -> tuple[float, float]:
    """Return the CPU seconds of `npad translate` and its peak anonymous memory in MiB."""
    command = [sys.executable, "-m", "npad", "translate", "--device", "cpu"]
    command += ["-m", str(model), "-i", str(text), *DECODER]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=environment)
    peak, ended = 0, 0
    while not ended:
        # A process about to end has no RssAnon.
        status = Path(f"/proc/{process.pid}/status").read_text().splitlines()
        sizes = (int(line.split()[1]) for line in status if line.startswith("RssAnon"))
        peak = max(peak, *sizes, 0)
        time.sleep(0.02)
        ended, code, usage = os.wait4(process.pid, os.WNOHANG)
    if code:
        raise SystemExit("npad translate failed")
    return usage.ru_utime + usage.ru_stime, peak / 1024


def by_sentences(sizes: Sequence[int]) -> Table:
    table = Table(
        "sentences",
        "seconds",
        "ms a sentence",
        "peak memory, MiB",
        title="npad translate, two chains",
    )
    times = []
    with tempfile.TemporaryDirectory() as folder:
        model, text = Path(folder) / "model", Path(folder) / "text"
        save_model(model, *SMALL)
        text.write_text(f"{sentence(0)}\n")
        startup, _ = time_translate(model, text)
        for size in sizes:
            with open(text, "w") as file:
                file.writelines(f"{sentence(i)}\n" for i in range(size))
            seconds, peak = time_translate(model, text)
            times.append(seconds - startup)
            table.add_row(
                f"{size:,}", f"{times[-1]:.1f}", f"{1000 * times[-1] / size:.2f}", f"{peak:,.0f}"
            )
    table.caption = f"exponent {exponent(sizes, times):.2f}"
    return table


def growth(
    title: str, unit: str, sizes: Sequence[int], work: Callable[[int], object], repeats: int
) -> Table:
    """Return a table of the seconds that `work` takes at each size."""
    table = Table(unit, "seconds", "ms for each", title=title)
    work(sizes[0])
    times_by_size: list[list[float]] = [[] for _ in sizes]
    for _ in range(repeats):
        for size, times in zip(sizes, times_by_size, strict=True):
            start = time.process_time()
            work(size)
            times.append(time.process_time() - start)
    medians = [statistics.median(times) for times in times_by_size]
    for size, seconds in zip(sizes, medians, strict=True):
        table.add_row(f"{size}", f"{seconds:.2f}", f"{1000 * seconds / size:.1f}")
    table.caption = f"exponent {exponent(sizes, medians):.2f}"
    return table


def exponent(sizes: Sequence[int], seconds: Sequence[float]) -> float:
    """Return the slope of log seconds over log size."""
    return float(np.polyfit(np.log(sizes), np.log(seconds), 1)[0])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sentences", default="1000,10000,100000")
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    out = Console()
    out.print(by_sentences([*map(int, arguments.sentences.split(","))]))
    model = prepared(untrained(MIDDLE[0], *MIDDLE))

    def run(chains: int = 5, source: int = 2 * LENGTH, length: int = 2 * LENGTH) -> None:
        sources = torch.randint(
            1, MIDDLE[1], (SENTENCES, source), generator=torch.Generator().manual_seed(0)
        ).tolist()
        decode(model, sources, NPAD(Greedy(), chains, Noise(0.3)), length, max_rows=ROWS)

    title = f"{SENTENCES} sentences, otherwise 5 chains, {2 * LENGTH} tokens in and out"
    for name, sizes in {"chains": CHAINS, "length": LENGTHS, "source": LENGTHS}.items():

        def work(size: int, name: str = name) -> None:
            run(**{name: size})

        out.print(growth(title, name, sizes, work, arguments.repeats))


if __name__ == "__main__":
    main()
