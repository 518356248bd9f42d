"""Model calls of samples that share their prefixes, and whether they are the same samples.

python benchmarks/shared_sampling.py TEXT       English, a sentence per line, such as test.en.xz

Calls are of all sentences, on the model that ships. In float32 two batch shapes may part where a
draw falls within rounding of the border between two tokens.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import npad
from npad.text.files import read_lines


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("text", type=Path)
    parser.add_argument("--device", default="cpu")
    for name, value in {"sentences": 100, "samples": 50, "batch": 20}.items():
        parser.add_argument(f"--{name}", type=int, default=value, help=f"default {value}")
    arguments = parser.parse_args()
    translator = npad.load("en-de", arguments.device)
    source = translator.encode(list(read_lines(arguments.text))[: arguments.sentences])
    for temperature in (0.3, 0.5, 0.7, 1.0):
        outputs, calls = [], []
        for kind in (npad.Sampling, npad.SharedSampling):
            decoder, found = kind(arguments.samples, temperature), []
            began = time.perf_counter()
            with npad.count_calls() as counted:
                for start in range(0, len(source), arguments.batch):
                    part = source[start : start + arguments.batch]
                    ids = range(start, start + len(part))
                    found += npad.decode(translator.model, part, decoder, 100, ids=ids)
            seconds = time.perf_counter() - began
            outputs.append([sorted(h.tokens for h in hypotheses) for hypotheses in found])
            calls.append(counted.search)
            print(
                f"temperature {temperature}, {kind.__name__}: {counted.search:,} calls, "
                f"{seconds:.1f} s",
                flush=True,
            )
        same = sum(a == b for a, b in zip(*outputs, strict=True))
        share = calls[1] / calls[0]
        print(f"  {share:.0%} of the calls, the same samples for {same} of {len(source)} sentences")


if __name__ == "__main__":
    main()
