"""How the cost of decoding grows with sentences, chains and lengths, and the memory of streaming.

python benchmarks/streaming.py [--sentences 1000,10000,100000] [--repeats 3]
python benchmarks/streaming.py --memory [--sentences 10000,100000,1000000] [--data FILE]
                               [--against SRC] [--units 32]

Time: weights are random and the end token is never generated, so that every sentence is the same
work. Sentences go through `npad translate` as a process, with a model of 32 units and NPAD over
greedy search; the cost of a single sentence is subtracted as start-up. Chains and lengths are
measured within this process, with a model of 256 units, 1,024 rows at a time, medians of rounds in
turn. All run on one thread and are measured in CPU seconds, which other load on the machine hardly
changes. The exponent is the slope of a line through the logarithms: 1 is linear; it is lower where
part of the cost is constant, as the encoder's is with chains.

--memory: greedy search, a model of 32 units whose outputs end by themselves, and texts of random
words whose number is drawn as in real text (log-normal, median 9), or the lines of FILE; a longer
stream repeats them. Batches then have all numbers of rows. Peak memory is that of the process
(VmHWM in /proc); anonymous memory (RssAnon) leaves out the libraries' files, and is sampled every
20 ms. With --against SRC, the folder of another version's package, each size also runs with that;
with --environment NAME=VALUE, such as LRU_CACHE_CAPACITY=64, also with these variables.
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
from collections.abc import Callable, Mapping, Sequence
from itertools import cycle, islice
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from npad import NPAD, Greedy, Noise, decode
from npad.models.cgru.fast import prepared
from npad.storage import checkpoint
from npad.text.files import read_lines
from npad.text.subwords import Subwords
from workload import untrained

CHAINS, LENGTHS = (1, 2, 5, 10, 25, 50), (10, 20, 40, 80)
SMALL, VARIED, MIDDLE = (32, 300), (32, 500), (256, 4000)  # units, vocabulary
LENGTH, ROWS, SENTENCES = 10, 1024, 128
DECODER = ("--decoder", "npad", "--chains", "2", "--sigma", "0.3", "--max-length", str(LENGTH))
GREEDY = ("--decoder", "greedy", "--max-length", str(LENGTH))
TEXTS = 100_000  # distinct texts; a longer stream repeats them
WORDS = (2.2, 0.55, 80)  # of a text: mean and deviation of their logarithm, and the most
GAIN, END_BIAS = 4, 0.64  # factor of the weights, bias of the end token: outputs vary in length


def sentence(number: int) -> str:
    """Return the sentence of a number: four to twelve made-up words."""
    generator = random.Random(number)
    words = (
        "".join(generator.choices("bdgklmnprstvz", k=2) + generator.choices("aeiou"))
        for _ in range(generator.randint(4, 12))
    )
    return " ".join(words)


def varied(number: int) -> str:
    """Return the text of a number, as long as real ones are."""
    generator = random.Random(number)
    mean, deviation, most = WORDS
    count = min(max(1, round(generator.lognormvariate(mean, deviation))), most)
    syllables = (
        "".join(
            generator.choice("bdgklmnprstvz") + generator.choice("aeiou")
            for _ in range(generator.randint(1, 3))
        )
        for _ in range(count)
    )
    return " ".join(syllables)


def save_model(folder: Path, units: int, vocabulary: int, ends: bool = False) -> None:
    """Save a model with random weights; `ends`: its outputs end by themselves."""
    texts = map(varied if ends else sentence, range(1000))
    subwords = Subwords.learn(texts, vocabulary)
    model = untrained(units, units, subwords.size)
    if ends:
        with torch.no_grad():
            for name, weight in model.named_parameters():
                if "weight" in name and name != "logits.weight":
                    weight *= GAIN
            model.logits.bias[model.special.eos] = END_BIAS
    checkpoint.save(folder, model, (subwords, subwords), {})


class Cost(NamedTuple):
    """What a run of `npad translate` took."""

    seconds: float  # of the CPU
    peak: float  # memory in MiB
    anonymous: float  # of it anonymous, in MiB


def run_translate(
    model: Path,
    text: Path,
    decoder: Sequence[str],
    changes: Mapping[str, str] = MappingProxyType({}),
) -> Cost:
    """Run `npad translate` on one thread, with changes to the environment."""
    command = [sys.executable, "-m", "npad", "translate", "--device", "cpu"]
    command += ["-m", str(model), "-i", str(text), *decoder]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=environment | changes)
    peaks, ended = {"VmHWM": 0, "RssAnon": 0}, 0
    while not ended:
        # A process about to end has no memory.
        for line in Path(f"/proc/{process.pid}/status").read_text().splitlines():
            name, _, size = line.partition(":")
            if name in peaks:
                peaks[name] = max(peaks[name], int(size.split()[0]))
        time.sleep(0.02)
        ended, code, usage = os.wait4(process.pid, os.WNOHANG)
    if code:
        raise SystemExit("npad translate failed")
    return Cost(usage.ru_utime + usage.ru_stime, *(size / 1024 for size in peaks.values()))


def memory(
    sizes: Sequence[int], data: Path | None, versions: Mapping[str, dict[str, str]], units: int
) -> Table:
    """Return a table of the peak memory of `npad translate` over streams of growing size."""
    table = Table(
        "lines", "npad", "seconds", "peak memory, MiB", "of it anonymous", title="greedy search"
    )
    peaks: dict[str, list[Cost]] = {version: [] for version in versions}
    lines = [*map(varied, range(TEXTS))] if data is None else [*read_lines(data)]
    with tempfile.TemporaryDirectory() as folder:
        model, text = Path(folder) / "model", Path(folder) / "text"
        save_model(model, units, VARIED[1], ends=True)
        for size in sizes:
            with open(text, "w") as file:
                file.writelines(f"{line}\n" for line in islice(cycle(lines), size))
            for version, changes in versions.items():
                cost = run_translate(model, text, GREEDY, changes)
                peaks[version].append(cost)
                figures = (f"{cost.seconds:.1f}", f"{cost.peak:,.0f}", f"{cost.anonymous:,.0f}")
                table.add_row(f"{size:,}", version, *figures)
                print(f"{size:,} lines, {version}:", *figures, file=sys.stderr, flush=True)
    growth = (
        f"{version}: {100 * (max(c.peak for c in costs) / costs[0].peak - 1):+.0f} %, anonymous "
        f"{100 * (max(c.anonymous for c in costs) / costs[0].anonymous - 1):+.0f} %"
        for version, costs in peaks.items()
    )
    table.caption = "growth from the first size to the largest peak: " + "; ".join(growth)
    return table


def by_sentences(sizes: Sequence[int]) -> Table:
    table = Table("sentences", "seconds", "ms per sentence", title="npad translate, two chains")
    times = []
    with tempfile.TemporaryDirectory() as folder:
        model, text = Path(folder) / "model", Path(folder) / "text"
        save_model(model, *SMALL)
        text.write_text(f"{sentence(0)}\n")
        startup = run_translate(model, text, DECODER).seconds
        for size in sizes:
            with open(text, "w") as file:
                file.writelines(f"{sentence(i)}\n" for i in range(size))
            times.append(run_translate(model, text, DECODER).seconds - startup)
            table.add_row(f"{size:,}", f"{times[-1]:.1f}", f"{1000 * times[-1] / size:.2f}")
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
    parser.add_argument("--memory", action="store_true", help="measure memory, not time")
    parser.add_argument("--data", type=Path, help="a file of lines for --memory")
    parser.add_argument("--against", help="src of another version of npad, for --memory")
    parser.add_argument("--units", type=int, default=VARIED[0], help="of the model of --memory")
    parser.add_argument("--environment", nargs="*", default=[], metavar="NAME=VALUE")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    out = Console(width=100)
    sizes = [*map(int, arguments.sentences.split(","))]
    if arguments.memory:
        versions: dict[str, dict[str, str]] = {"this": {}}
        if arguments.against:
            versions["other"] = {"PYTHONPATH": arguments.against}
        if arguments.environment:
            changes = dict(change.split("=", 1) for change in arguments.environment)
            versions[" ".join(arguments.environment)] = changes
        out.print(memory(sizes, arguments.data, versions, arguments.units))
        return
    out.print(by_sentences(sizes))
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
