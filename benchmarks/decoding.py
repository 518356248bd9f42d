"""Decoding speed of each strategy: the plain and the prepared model in turn, outputs of one length.

python benchmarks/decoding.py            1,024 units, embeddings of 512, 8,000 tokens, 25 in and out
python benchmarks/decoding.py --units 256 --sentences 32

Weights are random and the end token is never generated, so that all do the same work. Tokens are
those of the best hypothesis; a row-step is one row (sentence × chain × beam) through one step. The
ratio compares the two models within this run. NPAD's times include re-scoring, which stays in
float32 and takes long here: with random weights nearly every chain ends elsewhere. "its chains
alone" leaves re-scoring out.
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

from npad import NPAD, Beam, Greedy, Noise, decode
from npad.engine.cost import count_calls
from npad.hypotheses import Hypotheses
from npad.models.cgru.fast import Prepared
from npad.models.low_precision import LowPrecision
from npad.rows import Problems
from npad.search.decoder import Decoder
from workload import untrained


class ChainsOnly(NPAD):
    """NPAD without re-scoring: returns what the chains found, with their noisy scores."""

    def search(self, model: Any, state: Any, problems: Problems) -> Hypotheses:
        return self.runner.run(model, state, problems, self.numbered())


STRATEGIES: dict[str, Decoder] = {
    "greedy": Greedy(),
    "beam 5": Beam(5),
    "beam 10": Beam(10),
    "NPAD-50": NPAD(Greedy(), 50, Noise(0.3)),
    "NPAD-50, int8": NPAD(Greedy(), 50, Noise(0.3)),
    "its chains alone": ChainsOnly(Greedy(), 50, Noise(0.3)),
}


def time_batches(model: Any, batches: Sequence[Any], decoder: Decoder, length: int) -> float:
    """Return the seconds to decode all batches."""
    start = time.perf_counter()
    for batch in batches:
        decode(model, batch, decoder, length)
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    sizes = {
        "units": 1024,
        "embedding": 512,
        "vocabulary": 8000,
        "sentences": 64,
        "length": 25,
        "rows": 320,
        "repeats": 3,
    }
    for name, value in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=value, help=f"default {value}")
    arguments = parser.parse_args()
    plain = untrained(arguments.units, arguments.embedding, arguments.vocabulary)
    fast = Prepared(plain)
    low = LowPrecision(fast, "int8")
    shape = (arguments.sentences, arguments.length - 1)
    sources = torch.randint(1, arguments.vocabulary, shape).tolist()
    threads = torch.get_num_threads()
    settings = ", ".join(f"{name} {value}" for name, value in vars(arguments).items())
    table = Table(title=f"{settings}; {threads} threads")
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
        model = low if name in ("NPAD-50, int8", "its chains alone") else fast
        batch_size = max(1, arguments.rows // decoder.rows)
        sentences = arguments.sentences // (decoder.rows if decoder.rows > 10 else 1)
        subset = sources[: max(batch_size, sentences)]
        batches = [subset[i : i + batch_size] for i in range(0, len(subset), batch_size)]
        with count_calls() as calls:
            time_batches(plain, batches[:1], decoder, arguments.length)
        time_batches(model, batches[:1], decoder, arguments.length)
        rounds = [  # seconds of the plain and of the prepared model
            [time_batches(m, batches, decoder, arguments.length) for m in (plain, model)]
            for _ in range(arguments.repeats)
        ]
        medians = [statistics.median(times) for times in zip(*rounds, strict=True)]
        tokens = len(subset) * arguments.length
        row_steps = calls.search / len(batches[0]) * len(subset)
        cells = [
            f"{amount / seconds:,.0f}" for seconds in medians for amount in (tokens, row_steps)
        ]
        ratio = statistics.median(plain_s / prepared_s for plain_s, prepared_s in rounds)
        table.add_row(name, *cells, f"{ratio:.2f}")
    Console().print(table)


if __name__ == "__main__":
    main()
