"""Train the models of docs/results/caption and docs/results/speech, in a given time.

    python -m studies.tasks.train speech --data DATA --out RUNS/speech
    python -m studies.tasks.train store --data DATA --out RUNS/pictures
    python -m studies.tasks.train caption --data DATA --store RUNS/pictures --out RUNS/cap
    python -m studies.tasks.train caption-shuffled (the same)
    python -m studies.tasks.train caption-scratch --data DATA --out RUNS/scratch

DATA has the folders flickr8k (images-80px.tar, train.tsv.xz, valid.tsv.xz) and fsdd (fsdd.tar.xz).
The first epoch is timed; the others are as many as fit, with the learning rate annealed over them.
OUT/model is the best model in int8; OUT/run is the run, to resume from. Pictures are encoded by a
frozen network, once, into a store that both caption models read. `caption-shuffled` sees, with
every caption, the picture of another one: what a language model alone can do. `caption-scratch`
also learns to encode pictures, from pixels that are changed a little in every update.
"""

from __future__ import annotations

import argparse
import json
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from npad.engine.devices import device_named
from npad.errors import InvalidInput
from npad.pipelines.manifests import read_files, read_manifest
from npad.pipelines.sound import log_mel
from npad.storage import checkpoint, jsonl
from npad.storage.atomic import atomic_folder
from npad.storage.regular import file_digest, seal
from npad.training import run
from npad.training.loop import Watch
from npad.training.prepare import write_store
from npad.training.recipe import Recipe
from npad.training.sources import SourceKind
from npad.training.store import Store
from studies.digits import (
    RATE,
    SHORTEST,
    TRAINING_TAKES,
    VALIDATION_TAKES,
    archive_in,
    read_takes,
    training_strings,
)

KINDS = ("store", "caption", "caption-shuffled", "caption-scratch", "speech")
FEATURES: dict[str, dict[str, Any]] = {
    "caption": {"network": "efficientnet-lite1"},
    "caption-scratch": {},  # pixels
    "speech": {"rate": RATE},
}
OPTIONS: dict[str, dict[str, Any]] = {
    "caption": {"units": 192, "embedding": 128, "dropout": 0.4},
    "caption-scratch": {"units": 512, "embedding": 256, "dropout": 0.4},
    "speech": {"units": 256, "embedding": 64, "dropout": 0.2, "source_options": {"channels": 256}},
}
# positions; about 50 captions of 25 cells, 64 of 100 cells, 100 strings
BATCH = {"caption": 1300, "caption-scratch": 6400, "speech": 12_800}
VOCABULARY = {"caption": 3000, "speech": 320}
MAX_EPOCHS = {"caption": 60, "speech": 40}
STRINGS = {"train": 16_000, "valid": 500}  # of digits
SAVING_SECONDS = 15  # kept of the time, for the last validation and for saving


class Printed(Watch):
    """Prints each validation."""

    def __init__(self) -> None:
        self.began = time.monotonic()

    def report(self, record: dict[str, Any]) -> None:
        if "valid_perplexity" in record:
            seconds = time.monotonic() - self.began
            print(
                f"{seconds:6.1f} s  epoch {record['epoch']}  update {record['update']}  "
                f"validation perplexity {record['valid_perplexity']:.3f}",
                flush=True,
            )


def pictures(task: SourceKind, data: Path, split: str) -> Iterator[tuple[Tensor, Any]]:
    """Yield the pictures of Flickr8k with their captions."""
    texts = read_manifest(data / "flickr8k" / f"{split}.tsv.xz")
    for name, content in read_files(data / "flickr8k" / "images-80px.tar", texts):
        yield task.read(content, name), texts[name]


def shuffle(store: Store, folder: Path) -> None:
    """Copy a store of pictures; every text gets the picture of another.

    Pictures change places along one random cycle, so that none keeps its own.
    """
    with atomic_folder(folder) as part:
        shutil.copytree(store.folder, part, dirs_exist_ok=True)
        about = {key: value for key, value in store.about.items() if key != "digest"}
        for split in about["splits"]:
            path = part / split / "source.items"
            items = np.fromfile(path, np.int64)
            order = np.random.default_rng(0).permutation(int(items.max()) + 1)
            others = np.empty_like(order)
            others[order] = np.roll(order, 1)
            others[items].tofile(path)
            about["sha256"][f"{split}/source.items"] = file_digest(path)
        (part / "store.json").write_text(json.dumps(seal(about), indent=2) + "\n")


def strings(data: Path, split: str, count: int) -> Iterator[tuple[Tensor, Any]]:
    """Yield the features of strings of digits with their words."""
    takes, seed = (TRAINING_TAKES, 0) if split == "train" else (VALIDATION_TAKES, 1)
    recordings = read_takes(archive_in(data), takes, RATE)
    shortest = 1 if split == "train" else SHORTEST  # attention is learnt from short ones first
    for utterance in training_strings(recordings, count, RATE, seed, shortest):
        yield log_mel(utterance.samples, RATE), [utterance.text]


def write(kind: str, data: Path, folder: Path, weights: Sequence[Path] = ()) -> Store:
    """Write the store of pictures with captions, or of strings of digits."""
    name = kind.split("-")[0]
    task = SourceKind.named(name, FEATURES[kind])
    splits: dict[str, Any] = {
        split: strings(data, split, count) if name == "speech" else pictures(task, data, split)
        for split, count in STRINGS.items()
    }
    return write_store(folder, task, splits, VOCABULARY[name], weights=weights)


def data_of(kind: str, data: Path, out: Path, given: Path | None) -> Path:
    """Return the folder of a model's store: the given one, or one that is written to `out`."""
    folder = out / "store"
    if folder.exists():
        return folder
    if kind == "caption-shuffled":
        original = Store.open(given) if given else write("caption", data, out / "pictures")
        shuffle(original, folder)
    elif given is not None:
        task = Store.open(given).kind
        if task is None or task.network != FEATURES[kind].get("network"):
            raise InvalidInput(f"{given} is not a store for {kind}; leave out --store to write one")
        return given
    else:
        write(kind, data, folder)
    return folder


def train(
    kind: str,
    store: Path,
    out: Path,
    device: torch.device,
    minutes: float = 2.5,
    epochs: int | None = None,
    units: int | None = None,
    **changes: Any,
) -> Path:
    """Train a model, or continue its training; return the folder of the best, packed.

    Args:
        kind: one of `KINDS`.
        store: of the training data.
        out: the folder to write.
        device: where to train.
        minutes: of training, which decide the epochs by the time that the first one takes.
        epochs: to train for, whatever the time.
        units: of the model, with embeddings half as wide, instead of those of `OPTIONS`.
        changes: of the recipe.
    """
    name, watch, folder = kind.split("-")[0], Printed(), out / "run"
    precision = "bfloat16" if device.type == "cuda" else "float32"
    settings: dict[str, Any] = {
        "batch": BATCH.get(kind, BATCH[name]),
        "patience": 100,
        "precision": precision,
    }
    recipe = replace(
        Recipe(anneal=True, epochs=epochs or 1, checkpoint=250), **(settings | changes)
    )
    if checkpoint.newest(folder, "checkpoint") is None:
        options = {"initialisation": "glorot"} | OPTIONS.get(kind, OPTIONS[name])
        if units is not None:
            options |= {"units": units, "embedding": max(1, units // 2)}
        run.train(folder, store, options, recipe, device, watch)
    if epochs is None:
        first, epoch = time.monotonic() - watch.began, epoch_seconds(folder / "log.jsonl")
        left = 60 * minutes - first - SAVING_SECONDS
        epochs = 1 + max(1, min(MAX_EPOCHS[name] - 1, int(left / epoch)))
        print(f"{first:.1f} s, then {epoch:.1f} s an epoch: {epochs} epochs", flush=True)
    progress, reason = run.resume(folder, device, watch, epochs=epochs)
    print(f"stopped after {reason}: perplexity {progress.best:.3f}", flush=True)
    best = checkpoint.load(folder)
    kept: list[str] = ["training", "longest_seconds"]
    about = {key: best.about[key] for key in kept if key in best.about}
    checkpoint.save(out / "model", best.model, best.subwords, about, packed=True)
    return out / "model"


def epoch_seconds(path: Path) -> float:
    """Return the seconds of an epoch, from the log of one, by its second half and its validation.

    In the first half graphs are captured.
    """
    records = jsonl.read(path)
    reports = [record for record in records if "perplexity" in record]
    middle, last = reports[len(reports) // 2], reports[-1]
    updates = max(1, last["update"] - middle["update"])
    validation = records[-1]["seconds"] - last["seconds"]
    return float((last["seconds"] - middle["seconds"]) / updates * last["update"] + validation)


def main(arguments: Sequence[str] | None = None) -> None:
    """Train one model."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--data", type=Path, required=True, help="folder of flickr8k and fsdd")
    parser.add_argument("--out", type=Path, required=True, help="the folder to write")
    parser.add_argument("--store", type=Path, help="store of pictures, written before")
    parser.add_argument("--weights", type=Path, nargs="*", default=[], help="of the network")
    parser.add_argument("--minutes", type=float, default=2.5, help="of training")
    parser.add_argument("--epochs", type=int, help="instead of --minutes")
    parser.add_argument("--batch", type=int, help="positions of a batch")
    parser.add_argument("--rate", type=float, help="learning rate")
    parser.add_argument("--units", type=int, help="of the model; embeddings are half as wide")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    if options.kind == "store":
        write("caption", options.data, options.out, options.weights)
        return
    device = device_named(options.device)
    store = data_of(options.kind, options.data, options.out, options.store)
    given = {"batch": options.batch, "learning_rate": options.rate, "units": options.units}
    changes = {name: value for name, value in given.items() if value is not None}
    train(
        options.kind,
        store,
        options.out,
        device,
        options.minutes,
        options.epochs,
        seed=options.seed,
        **changes,
    )


if __name__ == "__main__":
    main()
