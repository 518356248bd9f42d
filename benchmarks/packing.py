"""What packed weights gain on a CPU: products by their rows, and strategies by their sentences.

python benchmarks/packing.py                       1,024 units, embeddings of 512, 8,000 symbols, 25 in and 25 out

"plain" multiplies with the weights as they are, "packed" in the order in which the processor reads them; in turn, the
median of six. Both models are prepared; their weights are random and no output ends by itself.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from npad import NPAD, Beam, Greedy, decode
from npad.experiments.speed import matrix_rate, untrained
from npad.models.cgru import linear as product
from npad.models.cgru.fast import Prepared


def in_turn(work: Callable[[], Any]) -> list[float]:
    """Seconds with weights as they are, and packed."""
    taken: list[list[float]] = [[], []]
    for _ in range(2):
        for seconds, packs in zip(taken, (False, True), strict=True):
            product.can_pack = lambda packs=packs: packs
            work()  # which packs, and brings the weights into the cache
            for _ in range(3):
                start = time.perf_counter()
                work()
                seconds.append(time.perf_counter() - start)
    return [statistics.median(seconds) for seconds in taken]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, value in {
        "units": 1024,
        "embedding": 512,
        "symbols": 8000,
        "source": 25,
        "length": 25,
    }.items():
        parser.add_argument(f"--{name}", type=int, default=value, help=f"default {value}")
    asked = parser.parse_args()
    if not product.can_pack():
        raise SystemExit("this torch packs no weights for this processor")
    model, console = (
        Prepared(untrained(asked.units, asked.embedding, asked.symbols)).eval(),
        Console(),
    )

    rate = matrix_rate(torch.device("cpu"), torch.float32) / 1e9
    table = Table(
        title=f"GFLOP/s, plain → packed; a large product {rate:.0f}; {torch.get_num_threads()} threads"
    )
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
            for one in products.values():
                x = torch.randn(rows, one.in_features)
                plain, packed = in_turn(lambda one=one, x=x: one(x))
                work = 2e-9 * rows * one.in_features * one.out_features
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
        source, cells = torch.randint(1, asked.symbols, (sentences, asked.source - 1)).tolist(), []
        for decoder in strategies.values():
            plain, packed = in_turn(lambda d=decoder, s=source: decode(model, s, d, asked.length))
            cells.append(f"{1e3 * plain:,.0f} → {1e3 * packed:,.0f}: {plain / packed:.2f} ×")
        table.add_row(str(sentences), *cells)
    console.print(table)


if __name__ == "__main__":
    main()
