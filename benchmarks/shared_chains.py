"""Model calls of NPAD's chains that share their prefixes, and whether they find the same.

python benchmarks/shared_chains.py TEXT         English, a sentence per line, such as test.en.xz

Noise at the readout, the site `output`, does not outlive a step. Calls are of all sentences, on the
model that ships, without re-scoring, which is the same. In float32 two batch shapes may part where
two tokens are within rounding; --double compares in float64.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import npad
from npad.search import chains
from npad.text.files import read_lines


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("text", type=Path)
    parser.add_argument("--double", action="store_true", help="decode in float64")
    parser.add_argument("--sigma", type=float, nargs="+", default=[0.1, 0.3, 0.5])
    for name, value in {"sentences": 100, "chains": 50, "batch": 20}.items():
        parser.add_argument(f"--{name}", type=int, default=value, help=f"default {value}")
    arguments = parser.parse_args()
    translator = npad.load("en-de")
    model: Any = translator.model
    if arguments.double:
        model = model.double()
    source = translator.encode(list(read_lines(arguments.text))[: arguments.sentences])
    sharing = {"a row per chain": lambda model, site: False, "shared": chains.can_share}
    for sigma in arguments.sigma:
        decoder = npad.NPAD(chains=arguments.chains, noise=npad.Noise(sigma, site="output"))
        outputs, calls = [], []
        for name, can_share in sharing.items():
            found, counted, seconds = decoded(model, source, decoder, arguments.batch, can_share)
            outputs.append([[(h.tokens, h.count) for h in hypotheses] for hypotheses in found])
            calls.append(counted)
            distinct = sum(map(len, found)) / len(found)
            print(
                f"sigma {sigma}, {name}: {counted:,} calls, {seconds:.1f} s, "
                f"{distinct:.1f} distinct candidates a sentence",
                flush=True,
            )
        same = sum(a == b for a, b in zip(*outputs, strict=True))
        share = calls[1] / calls[0]
        print(f"  {share:.1%} of the calls, the same for {same} of {len(source)} sentences")


def decoded(
    model: Any, source: Any, decoder: npad.NPAD, batch: int, can_share: Callable[..., bool]
) -> tuple[list[list[npad.Hypothesis]], int, float]:
    """Return all hypotheses, the model calls of the search, and the seconds it took."""
    found, before = [], chains.can_share
    chains.can_share = can_share
    began = time.perf_counter()
    try:
        with npad.count_calls() as counted:
            for start in range(0, len(source), batch):
                part = source[start : start + batch]
                ids = range(start, start + len(part))
                found += npad.decode(model, part, decoder, 100, ids=ids)
    finally:
        chains.can_share = before
    return found, counted.search, time.perf_counter() - began


if __name__ == "__main__":
    main()
