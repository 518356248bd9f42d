"""Milliseconds to decode one sentence on a GPU: the median and the minimum of 60 decodings.

python benchmarks/latency.py LABEL      one line; the label tells apart versions of npad
python benchmarks/latency.py LABEL 8    batches of 8 sentences of mixed lengths instead of one

An untrained model of the paper's size, 16 tokens in and 20 out; mixed sources have 4 to 30 tokens,
other ones in every decoding. The script also runs on npad 0.1, so that two versions can be measured
in turn.
"""

from __future__ import annotations

import statistics
import sys
import time

import torch

from npad import NPAD, Beam, Greedy, Noise, decode
from npad.models.cgru.fast import Prepared
from workload import untrained

DECODERS = {
    "greedy": Greedy(),
    "NPAD-50": NPAD(Greedy(), 50, Noise(0.3)),
    "beam 5": Beam(5),
    "NPAD-10 + beam 5": NPAD(Beam(5), 10, Noise(0.3)),
    "NPAD-250": NPAD(Greedy(), 250, Noise(0.3)),
}
WARMUPS, REPEATS, LENGTH = 8, 60, 20


def lengths(batch: int) -> list[int]:
    """Return the tokens of each source, without its end token."""
    return [15] if batch == 1 else torch.randint(3, 30, (batch,)).tolist()


def main() -> None:
    if not torch.cuda.is_available():
        raise SystemExit("benchmarks/latency.py needs a GPU, and torch sees none")
    model = Prepared(untrained(1028, 512, 30_000).cuda()).eval()
    batch = int(sys.argv[2]) if len(sys.argv) > 2 else 1
    sources = [
        [torch.randint(1, 30_000, (length,)).tolist() for length in lengths(batch)]
        for _ in range(WARMUPS * batch + REPEATS)
    ]
    figures = []
    for name, decoder in DECODERS.items():
        for source in sources[:-REPEATS]:
            decode(model, source, decoder, LENGTH)
        times = []
        for source in sources[-REPEATS:]:
            torch.cuda.synchronize()
            start = time.perf_counter()
            decode(model, source, decoder, LENGTH)
            torch.cuda.synchronize()
            times.append(1e3 * (time.perf_counter() - start))
        figures.append(f"{name} {statistics.median(times):.2f} (min {min(times):.2f})")
    print(" ".join(sys.argv[1:]), ", ".join(figures))


if __name__ == "__main__":
    main()
