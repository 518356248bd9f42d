"""Which kernels the time of a Hugging Face model goes to, on a GPU.

    python benchmarks/huggingface_profile.py
    python benchmarks/huggingface_profile.py --small     a tiny model

A Marian of 62 million random weights, 16 tokens in and 20 out: 256 sentences × 50 chains in
bfloat16, then greedy search and NPAD-50 on one sentence. Milliseconds of all kernels of a search
and their number, then of the longest.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from huggingface_batches import LENGTH, TOKENS, chains_run
from huggingface_speed import NOISE, marian
from npad import NPAD, Greedy, decode
from npad.models.huggingface.adapter import HuggingFace
from npad.models.huggingface.prepared import prepare

WARMUPS, REPEATS, SHOWN = 6, 3, 16


def show(name: str, work: Callable[[], Any]) -> None:
    """Print the kernels of some work, longest first."""
    for _ in range(WARMUPS):
        work()
    activity = ProfilerActivity.CUDA if torch.cuda.is_available() else ProfilerActivity.CPU
    with profile(activities=[activity]) as profiled:
        for _ in range(REPEATS):
            work()
    kernels = sorted(profiled.key_averages(), key=lambda kernel: -kernel.device_time_total)
    total = sum(kernel.device_time_total for kernel in kernels) / REPEATS / 1e3
    count = sum(kernel.count for kernel in kernels) / REPEATS
    print(f"{name}: {total:.2f} ms in {count:,.0f} kernels")
    for kernel in kernels[:SHOWN]:
        milliseconds = kernel.device_time_total / REPEATS / 1e3
        print(f"  {milliseconds:7.3f} ms  {kernel.count / REPEATS:5.0f} ×  {kernel.key[:70]}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--small", action="store_true", help="a tiny model")
    small = parser.parse_args().small
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = marian(small).to(device).eval()
    prepare(model)
    adapter = HuggingFace(model)
    ids = torch.randint(3, 100, (4 if small else 256, LENGTH)).tolist()
    with torch.inference_mode():
        show(f"{len(ids)} × 50 chains, bfloat16", chains_run(adapter, ids, 50, "bfloat16"))
    for name, decoder in (("greedy", Greedy()), ("NPAD-50", NPAD(Greedy(), 50, NOISE))):
        show(name, partial(decode, adapter, ids[:1], decoder, TOKENS))


if __name__ == "__main__":
    main()
