"""What decoding costs as sentences, chains and lengths grow, and the memory in which sentences stream through.

python benchmarks/streaming.py [--sentences 1000,10000,100000] [--repeats 3]

Weights are random and the end symbol is never written, so that every sentence is the same work.
Sentences go through `npad translate` as a process, with a model of 32 units and NPAD over greedy search; its start is
taken off (what one sentence costs), and memory is the peak of what the process holds itself (RssAnon, of /proc). Chains
and lengths are measured within this process, with a model of 256 units, 1,024 rows at a time, medians in turn. All on
one thread, in seconds of the CPU, so that what else the machine does matters little. The exponent is the slope of a
line through the logarithms: 1 is linear; it is lower where part of the cost stays, as the encoder's does with chains.
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
SMALL, MIDDLE = (32, 300), (256, 4000)  # units, symbols
LENGTH, ROWS, SENTENCES = 10, 1024, 128
DECODER = ("--decoder", "npad", "--chains", "2", "--sigma", "0.3", "--max-length", str(LENGTH))


def sentence(number: int) -> str:
    """Four to twelve made-up words; another for every number."""
    made = random.Random(number)
    words = (
        "".join(made.choices("bdgklmnprstvz", k=2) + made.choices("aeiou"))
        for _ in range(made.randint(4, 12))
    )
    return " ".join(words)


def saved(folder: Path, units: int, symbols: int) -> None:
    subwords = Subwords.learn(map(sentence, range(1000)), symbols)
    checkpoint.save(folder, untrained(units, units, subwords.size), (subwords, subwords), {})


def streamed(model: Path, text: Path) -> tuple[float, float]:
    """CPU seconds of `npad translate`, and the peak of its anonymous memory in MiB."""
    command = [
        sys.executable,
        "-m",
        "npad",
        "translate",
        "--device",
        "cpu",
        "-m",
        model,
        "-i",
        text,
        *DECODER,
    ]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    process, peak, ended = (
        subprocess.Popen([*map(str, command)], stdout=subprocess.DEVNULL, env=environment),
        0,
        0,
    )
    while not ended:
        status = Path(
            f"/proc/{process.pid}/status"
        ).read_text()  # without the figure once it is about to end
        peak = max(
            peak,
            *(int(line.split()[1]) for line in status.splitlines() if line.startswith("RssAnon")),
            0,
        )
        time.sleep(0.02)
        ended, code, used = os.wait4(process.pid, os.WNOHANG)
    if code:
        raise SystemExit("translate failed")
    return used.ru_utime + used.ru_stime, peak / 1024


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
        saved(model, *SMALL)
        text.write_text(f"{sentence(0)}\n")
        start, _ = streamed(model, text)
        for size in sizes:
            with open(text, "w") as file:
                file.writelines(f"{sentence(i)}\n" for i in range(size))
            seconds, peak = streamed(model, text)
            times.append(seconds - start)
            table.add_row(
                f"{size:,}", f"{times[-1]:.1f}", f"{1000 * times[-1] / size:.2f}", f"{peak:,.0f}"
            )
    table.caption = f"exponent {exponent(sizes, times):.2f}"
    return table


def growth(
    title: str, unit: str, sizes: Sequence[int], work: Callable[[int], object], repeats: int
) -> Table:
    """Seconds of some work at each size."""
    table = Table(unit, "seconds", "ms for each", title=title)
    work(sizes[0])
    every: list[list[float]] = [[] for _ in sizes]
    for _ in range(repeats):
        for size, times in zip(sizes, every, strict=True):
            began = time.process_time()
            work(size)
            times.append(time.process_time() - began)
    medians = [statistics.median(times) for times in every]
    for size, seconds in zip(sizes, medians, strict=True):
        table.add_row(f"{size}", f"{seconds:.2f}", f"{1000 * seconds / size:.1f}")
    table.caption = f"exponent {exponent(sizes, medians):.2f}"
    return table


def exponent(sizes: Sequence[int], seconds: Sequence[float]) -> float:
    return float(np.polyfit(np.log(sizes), np.log(seconds), 1)[0])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sentences", default="1000,10000,100000")
    parser.add_argument("--repeats", type=int, default=3)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    out = Console()
    out.print(by_sentences([*map(int, asked.sentences.split(","))]))
    model = prepared(untrained(MIDDLE[0], *MIDDLE))

    def run(chains: int = 5, source: int = 2 * LENGTH, length: int = 2 * LENGTH) -> None:
        sources = torch.randint(
            1, MIDDLE[1], (SENTENCES, source), generator=torch.Generator().manual_seed(0)
        ).tolist()
        decode(model, sources, NPAD(Greedy(), chains, Noise(0.3)), length, max_rows=ROWS)

    usual = f"{SENTENCES} sentences, otherwise 5 chains, {2 * LENGTH} symbols in and out"
    for name, sizes in {"chains": CHAINS, "length": LENGTHS, "source": LENGTHS}.items():
        out.print(
            growth(usual, name, sizes, lambda size, name=name: run(**{name: size}), asked.repeats)
        )


if __name__ == "__main__":
    main()
