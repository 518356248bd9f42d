"""Gain of packed weights on a CPU: products by their rows, and strategies by their sentences.

python benchmarks/packing.py             1,024 units, embeddings of 512, 8,000 tokens, 25 in and out

"plain" multiplies with the weights as stored, "packed" in the order in which the processor reads
them; measured in turn, median of six. Both models are prepared, their weights are random, and no
output ends by itself.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from npad import NPAD, Beam, Greedy, decode
from npad.models import linear as product
from npad.models.cgru.fast import Prepared
from workload import matrix_rate, untrained


def plain_and_packed(work: Callable[[], Any]) -> list[float]:
    """Return the median seconds of `work` with plain and with packed weights."""
    times: list[list[float]] = [[], []]
    for _ in range(2):
        for seconds, packs in zip(times, (False, True), strict=True):
            product.can_pack = lambda packs=packs: packs
            work()  # packs the weights and loads them into the cache
            for _ in range(3):
                start = time.perf_counter()
                work()
                seconds.append(time.perf_counter() - start)
    return [statistics.median(seconds) for seconds in times]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, value in {
        "units": 1024,
        "embedding": 512,
        "vocabulary": 8000,
        "source": 25,
        "length": 25,
    }.items():
        parser.add_argument(f"--{name}", type=int, default=value, help=f"default {value}")
    arguments = parser.parse_args()
    if not product.can_pack():
        raise SystemExit("this torch does not pack weights for this processor")
    weights = untrained(arguments.units, arguments.embedding, arguments.vocabulary)
    model, console = Prepared(weights).eval(), Console()

    rate = matrix_rate(torch.device("cpu"), torch.float32) / 1e9
    threads = torch.get_num_threads()
    table = Table(title=f"GFLOP/s, plain → packed; a large product {rate:.0f}; {threads} threads")
    products = {
        "recurrence": model.recurrence,
        "attention and GRU₂": model.query_and_recurrence,
        "logits": model.logits,
    }
    for column in ("rows", *products):
        table.add_column(column, justify="right")
    with torch.inference_mode():
        for rows in (1, 5, 16, 50, 200, 1000):
            cells = []
            for linear in products.values():
                x = torch.randn(rows, linear.in_features)
                plain, packed = plain_and_packed(partial(linear, x))
                work = 2e-9 * rows * linear.in_features * linear.out_features
                cells.append(f"{work / plain:.0f} → {work / packed:.0f}")
            table.add_row(str(rows), *cells)
    console.print(table)

    table = Table(title="ms, plain → packed")
    strategies = {
        "greedy": Greedy(),
        "beam 5": Beam(5),
        "NPAD-10": NPAD(Greedy(), 10),
        "NPAD-50": NPAD(Greedy(), 50),
    }
    for column in ("sentences", *strategies):
        table.add_column(column, justify="right")
    for sentences in (1, 8):
        shape = (sentences, arguments.source - 1)
        source, cells = torch.randint(1, arguments.vocabulary, shape).tolist(), []
        for decoder in strategies.values():
            plain, packed = plain_and_packed(
                partial(decode, model, source, decoder, arguments.length)
            )
            cells.append(f"{1e3 * plain:,.0f} → {1e3 * packed:,.0f}: {plain / packed:.2f} ×")
        table.add_row(str(sentences), *cells)
    console.print(table)


if __name__ == "__main__":
    main()
