"""Decoding beside busy processes: seconds of NPAD-10 on the shipped model, by waiting policy.

    python benchmarks/busy.py                    quiet, beside one and beside two busy processes
    python benchmarks/busy.py --loads 0 1 --rounds 5

Each figure is the median over rounds of the seconds to translate 300 short sentences in a new
process with torch's default number of threads. "default" is OpenMP's own policy, by which threads
that wait for each other spin; "npad" is what the `npad` command chooses (`npad/cli/startup.py`);
"passive" lets them sleep at once; "one thread" needs no waiting. A busy process is an endless loop.
Ratios are medians of the ratios within a round. The machine must be otherwise idle.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from itertools import product

from rich.console import Console
from rich.table import Table

from npad.cli.startup import OPENMP_DEFAULTS

SETTINGS: dict[str, dict[str, str]] = {
    "default": {},
    "npad": OPENMP_DEFAULTS,
    "passive": {"OMP_WAIT_POLICY": "passive"},
    "one thread": {"OMP_NUM_THREADS": "1"},
}
SUBJECTS = ("I", "You", "We", "They", "Tom", "Mary", "The teacher", "My brother", "Our neighbour")
VERBS = ("saw", "bought", "liked", "needed", "found", "sold", "lost")
OBJECTS = ("a red car.", "the house.", "two books.", "some bread.", "nothing at all.")


def translate(sentences: int) -> None:
    """Print the seconds to translate the sentences."""
    from npad import NPAD, Greedy, Noise, load

    texts = [" ".join(words) for words in product(SUBJECTS, VERBS, OBJECTS)][:sentences]
    translator, decoder = load("en-de"), NPAD(Greedy(), 10, Noise(0.3))
    translator.translate(texts[:20], decoder)
    start = time.perf_counter()
    translator.translate(texts, decoder)
    print(time.perf_counter() - start)


def measure(settings: dict[str, str], sentences: int) -> float:
    """Return the seconds that a new process with these settings takes."""
    ours = ("OMP_", "GOMP_", "KMP_", "MKL_")
    environment = {name: v for name, v in os.environ.items() if not name.startswith(ours)}
    command = [sys.executable, __file__, "--child", "--sentences", str(sentences)]
    child = subprocess.run(
        command, env=environment | settings, check=True, capture_output=True, text=True
    )
    return float(child.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sentences", type=int, default=300, help="at most 315; default 300")
    parser.add_argument("--rounds", type=int, default=3, help="default 3")
    parser.add_argument("--loads", type=int, nargs="+", default=[0, 1, 2], help="default 0 1 2")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        translate(arguments.sentences)
        return
    table = Table(
        "busy processes", *SETTINGS, "npad ÷ default", "npad ÷ one thread", title="seconds"
    )
    for load in arguments.loads:
        busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(load)]
        try:
            rounds = [
                [measure(settings, arguments.sentences) for settings in SETTINGS.values()]
                for _ in range(arguments.rounds)
            ]
        finally:
            for process in busy:
                process.kill()
        medians = [statistics.median(seconds) for seconds in zip(*rounds, strict=True)]
        ratios = [statistics.median(r[1] / r[peer] for r in rounds) for peer in (0, 3)]
        table.add_row(str(load), *(f"{value:.2f}" for value in (*medians, *ratios)))
    Console().print(
        f"{os.cpu_count()} cores, {arguments.sentences} sentences; npad: {OPENMP_DEFAULTS}"
    )
    Console().print(table)


if __name__ == "__main__":
    main()
