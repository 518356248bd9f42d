"""How fast each strategy decodes: the plain model and the prepared one, in turn, with outputs of one length.

python benchmarks/decoding.py                      1,024 units, embeddings of 512, 8,000 symbols, 25 in and 25 out
python benchmarks/decoding.py --units 256 --sentences 32

The weights are random and the end symbol is never written, so that all do the same work. Tokens are those of the best
hypothesis; a row-step is one row (sentence × chain × beam) through one step. The ratio is of the two in this run.
NPAD's times are its judge's, too, who stays in float32 and has much to do here: with random weights nearly every chain
ends elsewhere. "its chains alone" leaves the judge out.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from npad import NPAD, Beam, Counted, Greedy, Noise, decode
from npad.experiments.speed import untrained
from npad.models.cgru.fast import Prepared
from npad.models.low_precision import LowPrecision
from npad.search.decoder import Decoder
from npad.search.hypotheses import Hypotheses
from npad.search.rows import Problems


class Unjudged(NPAD):
    """What the chains find, as they found it."""

    def search(self, model: Any, state: Any, problems: Problems) -> Hypotheses:
        return self._runner().run(model, state, problems, self._chains())


STRATEGIES: dict[str, Decoder] = {
    "greedy": Greedy(),
    "beam 5": Beam(5),
    "beam 10": Beam(10),
    "NPAD-50": NPAD(Greedy(), 50, Noise(0.3)),
    "NPAD-50, int8": NPAD(Greedy(), 50, Noise(0.3)),
    "its chains alone": Unjudged(Greedy(), 50, Noise(0.3)),
}


def seconds(model: Any, batches: Sequence[Any], decoder: Decoder, length: int) -> float:
    began = time.perf_counter()
    for batch in batches:
        decode(model, batch, decoder, length)
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    sizes = {
        "units": 1024,
        "embedding": 512,
        "symbols": 8000,
        "sentences": 64,
        "length": 25,
        "rows": 320,
        "repeats": 3,
    }
    for name, value in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=value, help=f"default {value}")
    asked = parser.parse_args()
    plain = untrained(asked.units, asked.embedding, asked.symbols)
    fast = Prepared(plain)
    low = LowPrecision(fast, "int8")
    sources = torch.randint(1, asked.symbols, (asked.sentences, asked.length - 1)).tolist()
    threads = torch.get_num_threads()
    table = Table(
        title=f"{', '.join(f'{k} {v}' for k, v in vars(asked).items())}; {threads} threads"
    )
    for column in (
        "strategy",
        "plain: tokens/s",
        "row-steps/s",
        "prepared: tokens/s",
        "row-steps/s",
        "ratio",
    ):
        table.add_column(column, justify="left" if column == "strategy" else "right")
    for name, decoder in STRATEGIES.items():
        quick = low if name in ("NPAD-50, int8", "its chains alone") else fast
        size = max(1, asked.rows // decoder.rows)
        some = sources[: max(size, asked.sentences // (decoder.rows if decoder.rows > 10 else 1))]
        batches = [some[i : i + size] for i in range(0, len(some), size)]
        counted = Counted(plain)
        seconds(counted, batches[:1], decoder, asked.length)
        seconds(quick, batches[:1], decoder, asked.length)
        each = [
            [seconds(model, batches, decoder, asked.length) for model in (plain, quick)]
            for _ in range(asked.repeats)
        ]
        times = [statistics.median(one) for one in zip(*each, strict=True)]
        tokens, steps = len(some) * asked.length, counted.calls / len(batches[0]) * len(some)
        cells = [f"{amount / one:,.0f}" for one in times for amount in (tokens, steps)]
        table.add_row(name, *cells, f"{statistics.median(a / b for a, b in each):.2f}")
    Console().print(table)


if __name__ == "__main__":
    main()
