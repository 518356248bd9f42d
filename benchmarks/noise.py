"""Cost of drawing noise, as a share of a step of the model that it perturbs.

    make benchmark                a GRU of 1024 units, 8,000 tokens, 64 sentences × 50 chains
    python benchmarks/noise.py --units 256 --sentences 8

Step and noise are timed in turn within one run; the ratio is of their medians. The limit is 15 %.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial

import torch
from rich.console import Console
from rich.table import Table

from npad.distributions import (
    Antithetic,
    Dropout,
    Fixed,
    Gaussian,
    Laplace,
    Orthogonal,
    StudentT,
    Uniform,
)
from npad.models.recurrent import RecurrentLM
from npad.noise.random import Keys

MAX_SHARE = 0.15  # of a step
DISTRIBUTIONS = (
    Gaussian(),
    Uniform(),
    Laplace(),
    StudentT(),
    Dropout(),
    Fixed(),
    Antithetic(),
    Orthogonal(),
)


def measure(
    units: int, vocabulary: int, sentences: int, chains: int, repeats: int
) -> tuple[float, dict[str, float]]:
    """Return the seconds of a clean step, and of each distribution's noise on its state."""
    rows = sentences * chains
    model = RecurrentLM(vocabulary, units // 2, units).eval()
    state = model.select(
        model.start(range(sentences)), torch.arange(sentences).repeat_interleave(chains)
    )
    tokens = torch.randint(vocabulary, (rows,))
    hidden, sigma = torch.randn(rows, units), torch.full((rows,), 0.3)
    ids, chain = (
        torch.arange(sentences).repeat_interleave(chains),
        torch.arange(chains).repeat(sentences),
    )
    keys = Keys(0, ids, chain, torch.ones_like(ids), torch.zeros_like(ids), "hidden.0")

    jobs: dict[str, Callable[[], object]] = {"step": lambda: model.step(state, tokens)}
    for distribution in DISTRIBUTIONS:
        jobs[type(distribution).__name__] = partial(
            distribution.perturb, hidden, sigma, keys, distribution.relative_only
        )
    times: dict[str, list[float]] = {name: [] for name in jobs}
    with torch.inference_mode():
        for _ in range(repeats + 1):
            for name, job in jobs.items():
                start = time.perf_counter()
                job()
                times[name].append(time.perf_counter() - start)
    # The first round warms up.
    medians = {name: statistics.median(seconds[1:]) for name, seconds in times.items()}
    return medians.pop("step"), medians


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, value in {
        "units": 1024,
        "vocabulary": 8000,
        "sentences": 64,
        "chains": 50,
        "repeats": 7,
    }.items():
        parser.add_argument(f"--{name}", type=int, default=value, help=f"default {value}")
    options = vars(parser.parse_args())
    step, noise = measure(**options)
    settings = ", ".join(f"{name} {value}" for name, value in options.items())
    table = Table(title=f"{settings}; {torch.get_num_threads()} threads")
    for name in ("noise", "ms", "share of a step"):
        table.add_column(name, justify="left" if name == "noise" else "right")
    for name, seconds in noise.items():
        style = "" if seconds / step <= MAX_SHARE else "red"
        table.add_row(name, f"{1000 * seconds:.1f}", f"{seconds / step:.1%}", style=style)
    table.add_row("a clean step", f"{1000 * step:.1f}", "", style="dim")
    Console().print(table)


if __name__ == "__main__":
    main()
