"""Parallel text to a token store, streaming: two passes over the text, and memory that does not grow with it."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from itertools import islice, zip_longest
from pathlib import Path

from npad.errors import InvalidInput
from npad.storage.atomic import atomic_folder, exclusive_lock
from npad.storage.sealed import file_digest, seal
from npad.text.files import display_name, open_input, read_lines, reading_errors
from npad.text.subwords import LETTERS, Subwords
from npad.training.store import FORMAT, SIDES, Store, Writer, dtypes, members
from npad.validation import (
    as_list,
    brief,
    ensure_bool,
    ensure_callable,
    ensure_integer,
    ensure_path,
    one_line,
)

CHUNK = 10_000  # pairs at a time
VOCABULARY = 10_000_000  # symbols at most; the trainer reserves memory for all of them
Files = tuple[str | Path, str | Path]  # source, target
Progress = Callable[[str, int, int], None]  # what, done, of how many


@dataclass
class Counts:
    """What became of the pairs of one split."""

    pairs: int = 0
    kept: int = 0
    empty: int = 0
    long: int = 0
    symbols: list[int] = field(default_factory=lambda: [0, 0])


def prepare(
    folder: str | Path,
    train: Files,
    valid: Files | None = None,
    vocabulary: tuple[int, int] = (8000, 8000),
    joint: bool = False,
    tokenizers: Files | None = None,
    max_length: int = 100,
    sample: int = 2_000_000,
    progress: Progress = lambda what, done, total: None,
) -> Store:
    """Make a token store of aligned files; it appears whole or not at all.

    vocabulary: symbols of each side; with `joint` one vocabulary, of the first size, is learnt from both.
    tokenizers: a tokenizer.json a side, instead of learning them. sample: pairs that subwords are learnt from.
    max_length: symbols; a pair with a longer side is dropped, as is one with an empty side, and counted. A line of more
    than `LETTERS` characters for every symbol is too long without being tokenised, and is not learnt from.
    """
    ensure_path("folder", folder)
    folder = Path(folder)
    train, valid, tokenizers = (
        _files("train", train),
        _optional("valid", valid),
        _optional("tokenizers", tokenizers),
    )
    check(train, valid, vocabulary, joint, tokenizers, max_length, sample)
    ensure_callable("progress", progress, "a function of what is done, how much and of how many")
    if folder.exists():
        raise InvalidInput(
            f"{one_line(folder)} is there already; choose another folder, or remove it first"
        )
    with (
        exclusive_lock(folder.with_name(f".{folder.name}.lock"), f"preparing {folder}"),
        atomic_folder(folder) as part,
    ):
        splits = {"train": _seekable(train, part)} | (
            {"valid": _seekable(valid, part)} if valid else {}
        )
        pairs = {split: _aligned(files, progress) for split, files in splits.items()}
        letters = LETTERS * max_length
        subwords = _subwords(
            splits["train"],
            pairs["train"],
            vocabulary,
            joint,
            tokenizers,
            sample,
            letters,
            progress,
        )
        counts = {
            split: _encode(
                part / split, splits[split], subwords, max_length, pairs[split], progress
            )
            for split in splits
        }
        sizes = [one.size for one in subwords]
        for side, one in zip(SIDES, subwords, strict=True):
            one.save(part / f"{side}.tokenizer.json")
        about = {
            "format": FORMAT,
            "vocabulary": sizes,
            "joint": joint,
            "dtypes": dtypes(sizes),
            "max_length": max_length,
            "splits": {split: asdict(one) for split, one in counts.items()},
        }
        about["sha256"] = {name: file_digest(part / name) for name in members(list(counts))}
        (part / "store.json").write_text(json.dumps(seal(about), indent=2) + "\n")
        shutil.rmtree(part / "streams", ignore_errors=True)
    return Store.open(folder)


def check(
    train: object,
    valid: object = None,
    vocabulary: object = (8000, 8000),
    joint: object = False,
    tokenizers: object = None,
    max_length: object = 100,
    sample: object = 2_000_000,
) -> None:
    """Refuse wrong arguments of `prepare`, before anything is read."""
    _files("train", train)
    _optional("valid", valid)
    _optional("tokenizers", tokenizers)
    sizes = as_list("vocabulary", vocabulary, "two sizes, of the source and of the target")
    if len(sizes) != 2:
        raise InvalidInput(
            f"vocabulary must be two sizes, of the source and of the target, not {brief(vocabulary)}"
        )
    for size in sizes:
        ensure_integer("the vocabulary's size", size, 1)
        if size > VOCABULARY:
            raise InvalidInput(f"vocabulary must be at most {VOCABULARY:,} symbols, not {size:,}")
    ensure_bool("joint", joint)
    ensure_integer("max_length", max_length, 1)
    ensure_integer("sample", sample, 1)


def _files(name: str, files: object) -> Files:
    """The paths of two files."""
    rule = "two files, of the source and of the target"
    pair = as_list(name, files, rule)
    if len(pair) != 2:
        raise InvalidInput(f"{name} must be {rule}, not {brief(files)}")
    for file in pair:
        ensure_path(f"a file of {name}", file)
    return pair[0], pair[1]


def _optional(name: str, files: object) -> Files | None:
    return None if files is None else _files(name, files)


def _seekable(files: Files, folder: Path) -> Files:
    """The files, with a copy of each that can be read only once, as a pipe can."""
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


def _aligned(files: Files, progress: Progress) -> int:
    """How many pairs there are, all of them UTF-8."""
    counts = [0, 0]
    for side, file in enumerate(files):
        for counts[side], _ in enumerate(read_lines(file), start=1):
            if counts[side] % CHUNK == 0:
                progress("reading", counts[side], 0)
    if counts[0] != counts[1]:
        names = [display_name(file) for file in files]
        rule = "line i of the two must be a pair"
        raise InvalidInput(
            f"{names[0]} has {counts[0]:,} lines and {names[1]} has {counts[1]:,}; {rule}"
        )
    if counts[0] == 0:
        raise InvalidInput(f"{display_name(files[0])} and {display_name(files[1])} are empty")
    return counts[0]


def _subwords(
    files: Files,
    pairs: int,
    vocabulary: tuple[int, int],
    joint: bool,
    tokenizers: Files | None,
    sample: int,
    letters: int,
    progress: Progress,
) -> tuple[Subwords, Subwords]:
    if tokenizers is not None:
        source, target = map(Subwords.load, tokenizers)
        return source, target
    progress("learning subwords", 0, 0)

    def sampled(file: str | Path) -> Iterator[str]:
        return (line for line in _sampled(file, pairs, sample) if len(line) <= letters)

    if joint:
        both = Subwords.learn((line for file in files for line in sampled(file)), vocabulary[0])
        return both, both
    source, target = (
        Subwords.learn(sampled(file), size) for file, size in zip(files, vocabulary, strict=True)
    )
    return source, target


def _sampled(file: str | Path, pairs: int, sample: int) -> Iterator[str]:
    """`sample` of a file's lines, evenly spread; all of them if there are no more."""
    for i, line in enumerate(read_lines(file)):
        if i * sample // pairs != (i + 1) * sample // pairs or sample >= pairs:
            yield line


def _encode(
    folder: Path,
    files: Files,
    subwords: Sequence[Subwords],
    most: int,
    pairs: int,
    progress: Progress,
) -> Counts:
    counts = Counts()
    with _writer(folder, [one.size for one in subwords]) as writer:
        stream = _short(zip_longest(*map(read_lines, files), fillvalue=""), LETTERS * most, counts)
        while chunk := list(islice(stream, CHUNK)):
            sides = [
                one.encode(texts)
                for one, texts in zip(subwords, zip(*chunk, strict=True), strict=True)
            ]
            kept: list[tuple[list[int], list[int]]] = []
            for texts, pair in zip(chunk, zip(*sides, strict=True), strict=True):
                if not all(text.strip() for text in texts) or not all(pair):
                    counts.empty += 1
                elif max(map(len, pair)) > most:
                    counts.long += 1
                else:
                    kept.append(pair)
            if kept:
                writer.add(list(zip(*kept, strict=True)))
            counts.pairs += len(chunk)
            counts.kept += len(kept)
            progress("encoding", counts.pairs, pairs)
        counts.symbols = list(writer.written)
    if counts.kept == 0:
        raise InvalidInput(
            f"no pair of {display_name(files[0])} and {display_name(files[1])} is left: "
            f"{counts.empty:,} are empty and {counts.long:,} longer than {most} symbols"
        )
    return counts


def _short(
    stream: Iterable[tuple[str, ...]], letters: int, counts: Counts
) -> Iterator[tuple[str, ...]]:
    """The pairs without a side of more than `letters` characters, which are counted and not tokenised."""
    for pair in stream:
        if max(map(len, pair)) > letters:
            counts.pairs += 1
            counts.long += 1
        else:
            yield pair


@contextmanager
def _writer(folder: Path, sizes: Sequence[int]) -> Iterator[Writer]:
    writer = Writer(folder, sizes)
    try:
        yield writer
    finally:
        writer.close()
