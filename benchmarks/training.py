"""How fast training is: an epoch's seconds, target symbols a second, and peak memory.

python benchmarks/training.py --data STORE [--units 1024 --embedding 512 --batch 4096 --epochs 3]
python benchmarks/training.py                    generated pairs of Multi30k's size and lengths, no store needed
python benchmarks/training.py --profile          on a GPU, with where the time of ten updates goes, kernel by kernel

On a GPU also the same without the captured recurrence, and how far apart the two are: the gradient of one batch.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from gpu import profiled
from npad.models.cgru.model import AttentionModel
from npad.training.recipe import Recipe
from npad.training.store import Corpus, Store, Writer, dtypes
from npad.training.update import Updater


def generated(folder: Path, pairs: int, vocabulary: int) -> Corpus:
    """Random symbols, as many to a sentence as in Multi30k with BPE 8k (13.5 and 12.1 on average)."""
    random = np.random.default_rng(0)
    writer = Writer(folder, (vocabulary, vocabulary))
    writer.add(
        [
            [
                random.integers(1, vocabulary, n).tolist()
                for n in random.poisson(mean - 4, pairs) + 4
            ]
            for mean in (13.5, 12.1)
        ]
    )
    writer.close()
    return Corpus.open(folder, dtypes((vocabulary, vocabulary)))


def epochs(updater: Updater, count: int, batches: int | None) -> None:
    gpu = updater.device.type == "cuda"
    number = 0
    for epoch in range(count):
        if gpu:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
        began, symbols, total = time.perf_counter(), 0, torch.zeros((), device=updater.device)
        todo = updater.batcher.epoch(0, epoch)[:batches]
        for pairs in todo:
            number += 1
            total += updater.update(pairs, number)[0]
            symbols += int(updater.corpus.target.lengths[pairs].sum()) + len(pairs)
        perplexity = float(torch.exp(total / symbols))  # waits
        seconds = time.perf_counter() - began
        peak = (
            torch.cuda.max_memory_allocated()
            if gpu
            else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        )
        graphs = f", {len(updater.features.graphs)} graphs" if updater.features else ""
        print(
            f"  epoch {epoch + 1}: {seconds:6.2f} s, {len(todo)} updates, {symbols / seconds:9,.0f} target symbols/s, "
            f"peak {peak / 2**30:.1f} GiB, perplexity {perplexity:.2f}{graphs}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, help="a store that npad prepare made")
    for name, value in {
        "pairs": 29_000,
        "units": 1024,
        "embedding": 512,
        "batch": 4096,
        "epochs": 3,
    }.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--updates", type=int, help="of each epoch, only so many")
    asked = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    with tempfile.TemporaryDirectory() as folder:
        if asked.data:
            store = Store.open(asked.data)
            corpus, sizes = store.train, [one.size for one in store.subwords]
        else:
            corpus, sizes = generated(Path(folder) / "train", asked.pairs, 8000), [8000, 8000]
        where = (
            torch.cuda.get_device_name()
            if device.type == "cuda"
            else f"CPU, {torch.get_num_threads()} threads"
        )
        precision = "bfloat16" if device.type == "cuda" else "float32"
        print(
            f"{len(corpus):,} pairs, {asked.units} units, {asked.embedding} embeddings, {precision}, {where}"
        )

        def updater() -> Updater:
            torch.manual_seed(0)
            model = AttentionModel(
                sizes[0],
                sizes[1],
                asked.units,
                asked.embedding,
                dropout=0.2,
                initialisation="glorot",
            )
            return Updater(model, corpus, Recipe(batch=asked.batch, precision=precision), device)

        if device.type == "cuda":
            captured, plain = updater(), updater()
            plain.features = None
            pairs = captured.batcher.epoch(0, 0)[0]
            for one in (captured, plain):
                one.model.drop.p = 0.0  # else the two draw other numbers
                one.gradient(pairs, 1)
            a, b = (
                torch.cat([p.grad.flatten() for p in one.model.parameters()])
                for one in (captured, plain)
            )
            print(
                f"captured and plain gradient differ by {float((a - b).norm() / b.norm()):.1e} of its norm"
            )
            plain = updater()
            plain.features = None
            print("plain recurrence")
            epochs(plain, 2, asked.updates)
            print("captured recurrence")
        fast = updater()
        epochs(fast, asked.epochs, asked.updates)
        if asked.profile:
            some = fast.batcher.epoch(0, 0)[:10]
            profiled(lambda: [fast.update(pairs, 1) for pairs in some], "ten updates")


if __name__ == "__main__":
    main()
