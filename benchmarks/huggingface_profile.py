"""Which kernels the time of a Hugging Face model goes to.

    python benchmarks/huggingface_profile.py             on a GPU
    python benchmarks/huggingface_profile.py cpu         on two cores: a beam of 5, and `generate`'s
    python benchmarks/huggingface_profile.py --small     a tiny model

A Marian of 62 million random weights, 16 tokens in and 20 out. On a GPU: 256 sentences × 50 chains
in bfloat16, then greedy search and NPAD-50 on one sentence. On a CPU: 32 sentences. Milliseconds of
all kernels of a search and their number, then of the longest.
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
from npad import NPAD, Beam, Greedy, decode
from npad.models.huggingface.adapter import HuggingFace
from npad.models.linear import prepare

WARMUPS, REPEATS, SHOWN = 6, 3, 16


def show(name: str, work: Callable[[], Any]) -> None:
    """Print the kernels of some work, longest first."""
    for _ in range(WARMUPS if torch.cuda.is_available() else 1):
        work()
    on_gpu = torch.cuda.is_available()
    field = "device_time_total" if on_gpu else "self_cpu_time_total"
    with profile(
        activities=[ProfilerActivity.CUDA if on_gpu else ProfilerActivity.CPU]
    ) as profiled:
        for _ in range(REPEATS):
            work()
    kernels = sorted(profiled.key_averages(), key=lambda kernel: -getattr(kernel, field))
    total = sum(getattr(kernel, field) for kernel in kernels) / REPEATS / 1e3
    count = sum(kernel.count for kernel in kernels) / REPEATS
    print(f"{name}: {total:.2f} ms in {count:,.0f} kernels")
    for kernel in kernels[:SHOWN]:
        milliseconds = getattr(kernel, field) / REPEATS / 1e3
        print(f"  {milliseconds:7.3f} ms  {kernel.count / REPEATS:5.0f} ×  {kernel.key[:70]}")


def profile_cpu(small: bool) -> None:
    """Show a beam of 5, by npad and by `generate`."""
    model = marian(small).eval()
    source = torch.randint(3, 100, (4 if small else 32, LENGTH))

    def generate() -> None:
        model.generate(input_ids=source, num_beams=5, max_new_tokens=TOKENS, do_sample=False)

    show("generate, beam 5", generate)
    prepare(model)
    adapter = HuggingFace(model)
    show("npad, beam 5", partial(decode, adapter, source.tolist(), Beam(5), TOKENS))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("device", nargs="?", choices=("gpu", "cpu"), default="gpu")
    parser.add_argument("--small", action="store_true", help="a tiny model")
    arguments = parser.parse_args()
    small = arguments.small
    torch.manual_seed(0)
    if arguments.device == "cpu":
        profile_cpu(small)
        return
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
