"""Batches of a Hugging Face model: a CPU beside `generate`, and a GPU's share of its matrix rate.

    python benchmarks/huggingface_batches.py cpu             32 sentences, about five minutes
    python benchmarks/huggingface_batches.py gpu             256 sentences × 50 chains
    python benchmarks/huggingface_batches.py cpu --small     a tiny model: a rehearsal

A Marian of 62 million random weights, 16 tokens in and 20 out. On a CPU, medians over rounds in
which all take turns: beam 5 beside `generate` with num_beams=5; NPAD-10 beside `generate` that
samples ten sequences. On a GPU, the time of the noisy chains alone and of re-scoring their distinct
hypotheses, and the chains' share of the rate of a large matrix product in the same precision,
counting the products of the decoder's weights: two operations a weight and row, the embedding's
none, and the keys and values of the source once a sentence.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import transformers
from rich.console import Console
from rich.table import Table

from huggingface_speed import NOISE, TOKENS, marian
from npad import NPAD, Beam, Greedy, decode
from npad.hypotheses import Hypotheses
from npad.models.huggingface.adapter import HuggingFace
from npad.models.linear import Product, prepare
from npad.models.low_precision import LowPrecision
from npad.rescoring.strategies import rescore
from npad.rows import Problems
from workload import clock, matrix_rate

LENGTH = 16  # tokens of a source


def cpu(small: bool, sentences: int, repeats: int, console: Console) -> None:
    """Compare with `generate`."""
    model = marian(small).eval()
    loaded = copy.deepcopy(model)
    prepare(loaded)
    tokens = torch.randint(3, 100, (sentences, LENGTH))
    inputs = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}
    adapter, ids = HuggingFace(loaded), tokens.tolist()
    chains = NPAD(Greedy(), 10, NOISE)
    generate = partial(model.generate, **inputs, max_new_tokens=TOKENS)
    timed: dict[str, tuple[Callable[[], Any], str]] = {
        "generate, beam 5": (partial(generate, num_beams=5), ""),
        "npad, beam 5": (partial(decode, adapter, ids, Beam(5), TOKENS), "generate, beam 5"),
        "generate, 10 samples": (partial(generate, do_sample=True, num_return_sequences=10), ""),
        "npad, NPAD-10": (partial(decode, adapter, ids, chains, TOKENS), "generate, 10 samples"),
    }
    for precision in ("bfloat16", "int8"):
        low = LowPrecision(adapter, precision)
        work = partial(decode, low, ids, chains, TOKENS)
        timed[f"npad, NPAD-10, {precision}"] = work, "generate, 10 samples"
    seconds: dict[str, list[float]] = {name: [] for name in timed}
    for _ in range(repeats + 1):
        for name, (work, _) in timed.items():
            start = time.perf_counter()
            work()
            seconds[name].append(time.perf_counter() - start)
    medians = {name: statistics.median(times[1:]) for name, times in seconds.items()}
    title = f"{sentences} sentences, {torch.get_num_threads()} threads, {repeats} rounds"
    table = Table("", "seconds", "÷ generate's", title=title)
    for name, (_, peer) in timed.items():
        share = f"{medians[name] / medians[peer]:.2f}" if peer else ""
        table.add_row(name, f"{medians[name]:.2f}", share)
    console.print(table)


def chains_run(
    adapter: HuggingFace, ids: list[list[int]], chains: int, precision: str
) -> Callable[[], Hypotheses]:
    """Return a function that runs the noisy chains alone; to be called in inference mode."""
    npad = NPAD(Greedy(), chains, NOISE, clean_chain=False)
    low, state = adapter, adapter.reserve(adapter.start(ids), TOKENS)
    if precision != "float32":
        low, state = LowPrecision(adapter, precision).low_precision(state)
    keys = torch.arange(len(ids), device=adapter.device)
    problems = Problems(keys, torch.zeros_like(keys), TOKENS)
    return partial(npad.runner.run, low, state, problems, npad.numbered())


@torch.inference_mode()
def gpu(small: bool, sentences: int, chains: int, console: Console) -> None:
    """Measure chains and re-scoring."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = marian(small).to(device).eval()
    prepare(model)
    adapter = HuggingFace(model)
    ids = torch.randint(3, 100, (sentences, LENGTH)).tolist()
    operations = 2 * weights_per_row(model)
    table = Table("", "ms", "share of the matrix rate", title=f"{sentences} × {chains} chains")
    for precision, dtype in (("bfloat16", torch.bfloat16), ("float32", torch.float32)):
        run = chains_run(adapter, ids, chains, precision)
        found = run()
        for _ in range(5):
            run()
        seconds = clock(run, 5, device)
        share = sentences * chains * TOKENS * operations / seconds / matrix_rate(device, dtype)
        table.add_row(f"{precision} chains", f"{1e3 * seconds:.1f}", f"{share:.0%}")
        if precision == "bfloat16":
            clean = adapter.reserve(adapter.start(ids), 0)
            distinct = found.distinct().hypotheses
            again = partial(rescore, adapter, clean, distinct)
            again()
            seconds = clock(again, 3, device)
            table.add_row("re-scoring them, float32", f"{1e3 * seconds:.1f}", "")
            count = int(distinct.exists.sum())
    console.print(table)
    console.print(f"{count:,} distinct hypotheses of {sentences * chains:,}")


def weights_per_row(model: Any) -> int:
    """Return the weights that a row of the decoder is multiplied with."""
    decoder = model.get_decoder()
    products = [
        module.weight.numel()
        for name, module in decoder.named_modules()
        if isinstance(module, Product)
        and not ("encoder_attn" in name and ("k_proj" in name or "v_proj" in name))
    ]
    return int(sum(products) + model.get_output_embeddings().weight.numel())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kind", choices=["cpu", "gpu"])
    parser.add_argument("--small", action="store_true", help="a tiny model")
    parser.add_argument("--sentences", type=int, help="default 32 on a CPU, 256 on a GPU")
    parser.add_argument("--chains", type=int, default=50, help="on a GPU; default 50")
    parser.add_argument("--repeats", type=int, default=3, help="rounds on a CPU; default 3")
    given = parser.parse_args()
    console = Console(width=110)
    torch.manual_seed(0)
    console.print(f"torch {torch.__version__}, transformers {transformers.__version__}")
    if given.kind == "cpu":
        cpu(given.small, given.sentences or 32, given.repeats, console)
    else:
        console.print(torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU")
        gpu(given.small, given.sentences or 256, given.chains, console)


if __name__ == "__main__":
    main()
