"""Training speed: seconds per epoch, target tokens per second, and peak memory.

python benchmarks/training.py --data STORE [--units 1024 --embedding 512 --batch 4096 --epochs 3]
python benchmarks/training.py              generated pairs of Multi30k's size and lengths, no store
python benchmarks/training.py --profile    on a GPU, also a kernel profile of ten updates

On a GPU it also trains without the captured recurrence, and prints how far the gradients of one
batch differ.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from gpu import print_profile
from npad.models.cgru.model import AttentionModel
from npad.training.recipe import Recipe
from npad.training.store import PairCorpus, SideWriter, Store, dtypes
from npad.training.update import ModelUpdater


def generated(folder: Path, pairs: int, vocabulary: int) -> PairCorpus:
    """Write random pairs with Multi30k's mean lengths under BPE 8k, 13.5 and 12.1 tokens."""
    random = np.random.default_rng(0)
    types = dtypes((vocabulary, vocabulary))
    folder.mkdir(parents=True)
    for side, dtype, mean in zip(("source", "target"), types, (13.5, 12.1), strict=True):
        lengths = random.poisson(mean - 4, pairs) + 4
        with SideWriter(folder, side, dtype) as writer:
            writer.add([random.integers(1, vocabulary, n).tolist() for n in lengths])
    return PairCorpus.open(folder, types)


def train_epochs(updater: ModelUpdater, count: int, max_updates: int | None) -> None:
    gpu = updater.device.type == "cuda"
    number = 0
    for epoch in range(count):
        if gpu:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
        start, tokens, total = time.perf_counter(), 0, torch.zeros((), device=updater.device)
        batches = updater.batcher.epoch(0, epoch)[:max_updates]
        for pairs in batches:
            number += 1
            total += updater.update(pairs, number)[0]
            tokens += int(updater.corpus.target.lengths[pairs].sum()) + len(pairs)
        perplexity = float(torch.exp(total / tokens))  # waits for the GPU
        seconds = time.perf_counter() - start
        peak = (
            torch.cuda.max_memory_allocated()
            if gpu
            else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        )
        graphs = f", {len(updater.features.graphs)} graphs" if updater.features else ""
        print(
            f"  epoch {epoch + 1}: {seconds:6.2f} s, {len(batches)} updates, "
            f"{tokens / seconds:9,.0f} target tokens/s, "
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
    parser.add_argument("--updates", type=int, help="most updates per epoch")
    arguments = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    with tempfile.TemporaryDirectory() as folder:
        if arguments.data:
            store = Store.open(arguments.data)
            corpus, sizes = store.train, [subwords.size for subwords in store.subwords]
        else:
            corpus, sizes = generated(Path(folder) / "train", arguments.pairs, 8000), [8000, 8000]
        machine = (
            torch.cuda.get_device_name()
            if device.type == "cuda"
            else f"CPU, {torch.get_num_threads()} threads"
        )
        precision = "bfloat16" if device.type == "cuda" else "float32"
        print(
            f"{len(corpus):,} pairs, {arguments.units} units, {arguments.embedding} embeddings, "
            f"{precision}, {machine}"
        )

        def updater() -> ModelUpdater:
            torch.manual_seed(0)
            model = AttentionModel(
                sizes[0],
                sizes[1],
                arguments.units,
                arguments.embedding,
                dropout=0.2,
                initialisation="glorot",
            )
            return ModelUpdater(
                model, corpus, Recipe(batch=arguments.batch, precision=precision), device
            )

        if device.type == "cuda":
            captured, plain = updater(), updater()
            plain.features = None
            pairs = captured.batcher.epoch(0, 0)[0]
            gradients = []
            for variant in (captured, plain):
                variant.model.drop.p = 0.0  # the two would draw different dropout masks
                variant.gradient(pairs, 1)
                gradients.append(torch.cat([p.grad.flatten() for p in variant.model.parameters()]))
            captured_gradient, plain_gradient = gradients
            error = float((captured_gradient - plain_gradient).norm() / plain_gradient.norm())
            print(f"captured and plain gradient differ by {error:.1e} of its norm")
            plain = updater()
            plain.features = None
            print("plain recurrence")
            train_epochs(plain, 2, arguments.updates)
            print("captured recurrence")
        fast = updater()
        train_epochs(fast, arguments.epochs, arguments.updates)
        if arguments.profile:
            batches = fast.batcher.epoch(0, 0)[:10]
            print_profile(lambda: [fast.update(pairs, 1) for pairs in batches], "ten updates")


if __name__ == "__main__":
    main()
