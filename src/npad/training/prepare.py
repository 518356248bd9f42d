"""Turn parallel text into a token store, in a stream: memory does not grow with the text."""

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
from npad.storage.regular import file_digest, seal
from npad.text.files import display_name, open_input, read_lines, reading_errors
from npad.text.subwords import MAX_CHARACTERS_PER_TOKEN, TOKENIZER_FILES, Subwords
from npad.training.store import FORMAT, Store, Writer, dtypes, file_names
from npad.validation import (
    as_list,
    brief,
    ensure_bool,
    ensure_callable,
    ensure_integer,
    ensure_path,
    one_line,
)

CHUNK = 10_000  # pairs encoded at a time
MAX_VOCABULARY = 10_000_000  # tokens; the trainer reserves memory for all of them
Files = tuple[str | Path, str | Path]  # source, target
Progress = Callable[[str, int, int], None]  # task, lines done, lines in all (0 if unknown)


@dataclass
class Counts:
    """The numbers of pairs kept and dropped of a split, as in store.json."""

    pairs: int = 0
    kept: int = 0
    empty: int = 0
    long: int = 0
    tokens: list[int] = field(default_factory=lambda: [0, 0])  # source, target


def prepare(
    folder: str | Path,
    train: Files,
    valid: Files | None = None,
    vocabulary: tuple[int, int] = (8000, 8000),
    joint: bool = False,
    tokenizers: Files | None = None,
    max_length: int = 100,
    sample: int = 2_000_000,
    progress: Progress = lambda task, done, total: None,
) -> Store:
    """Build a token store from aligned files, atomically.

    Pairs with an empty side, or a side that is too long, are dropped and counted. A line of more
    than `MAX_CHARACTERS_PER_TOKEN` characters for each of `max_length` tokens is too long without
    being tokenised, and subwords are not learnt from it.

    Args:
        folder: the folder of the store, which must not exist.
        train: the source and target files of the training pairs: plain, gzip, xz, or `-`.
        valid: the files of the validation pairs.
        vocabulary: the number of tokens of source and target.
        joint: learn one vocabulary, of the first size, from both sides.
        tokenizers: a tokenizer.json per side, instead of learning them.
        max_length: tokens of a side.
        sample: pairs to learn subwords from, evenly spread over the text.
        progress: called with the task, the lines done, and the lines in all (0 if unknown).

    Returns:
        The store, open.

    Raises:
        InvalidInput: an argument is invalid, or the files cannot be read or are not aligned.
        StorageError: the store could not be written.
    """
    ensure_path("folder", folder)
    folder = Path(folder)
    train, valid = pair_of_files("train", train), _optional_files("valid", valid)
    tokenizers = _optional_files("tokenizers", tokenizers)
    check(train, valid, vocabulary, joint, tokenizers, max_length, sample)
    ensure_callable(
        "progress", progress, "a function of the task, the lines done and the lines in all"
    )
    if folder.exists():
        raise InvalidInput(
            f"{one_line(folder)} is there already; choose another folder, or remove it first"
        )
    with (
        exclusive_lock(folder.with_name(f".{folder.name}.lock"), f"preparing {folder}"),
        atomic_folder(folder) as part,
    ):
        splits = {"train": _seekable(train, part)}
        if valid:
            splits["valid"] = _seekable(valid, part)
        pairs = {split: _count_pairs(files, progress) for split, files in splits.items()}
        if tokenizers is None:
            progress("learning subwords", 0, 0)
            max_characters = MAX_CHARACTERS_PER_TOKEN * max_length
            sampled = [
                _sampled(file, pairs["train"], sample, max_characters) for file in splits["train"]
            ]
            subwords = _learn(sampled, vocabulary, joint)
        else:
            subwords = [Subwords.load(file) for file in tokenizers]
        counts = {
            split: _encode(part / split, files, subwords, max_length, pairs[split], progress)
            for split, files in splits.items()
        }
        for name, tokenizer in zip(TOKENIZER_FILES, subwords, strict=True):
            tokenizer.save(part / name)
        sizes = [tokenizer.size for tokenizer in subwords]
        about = {
            "format": FORMAT,
            "vocabulary": sizes,
            "joint": joint,
            "dtypes": dtypes(sizes),
            "max_length": max_length,
            "splits": {split: asdict(count) for split, count in counts.items()},
            "sha256": {name: file_digest(part / name) for name in file_names(list(counts))},
        }
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
    """Check the arguments of `prepare`, before any file is read.

    Raises:
        InvalidInput: an argument is invalid.
    """
    pair_of_files("train", train)
    _optional_files("valid", valid)
    _optional_files("tokenizers", tokenizers)
    rule = "two sizes, of the source and of the target"
    sizes = as_list("vocabulary", vocabulary, rule)
    if len(sizes) != 2:
        raise InvalidInput(f"vocabulary must be {rule}, not {brief(vocabulary)}")
    for size in sizes:
        ensure_integer("the vocabulary's size", size, 1)
        if size > MAX_VOCABULARY:
            raise InvalidInput(
                f"vocabulary must be at most {MAX_VOCABULARY:,} tokens, not {size:,}"
            )
    ensure_bool("joint", joint)
    ensure_integer("max_length", max_length, 1)
    ensure_integer("sample", sample, 1)


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


def _optional_files(name: str, files: object) -> Files | None:
    return None if files is None else pair_of_files(name, files)


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


def _count_pairs(files: Files, progress: Progress) -> int:
    """Return the number of pairs; require two files of as many lines, all UTF-8."""
    counts = [0, 0]
    for side, file in enumerate(files):
        for counts[side], _ in enumerate(read_lines(file), start=1):
            if counts[side] % CHUNK == 0:
                progress("reading", counts[side], 0)
    source, target = map(display_name, files)
    if counts[0] != counts[1]:
        rule = "line i of the two must be a pair"
        raise InvalidInput(
            f"{source} has {counts[0]:,} lines and {target} has {counts[1]:,}; {rule}"
        )
    if counts[0] == 0:
        raise InvalidInput(f"{source} and {target} are empty")
    return counts[0]


def _learn(
    sides: Sequence[Iterable[str]], vocabulary: tuple[int, int], joint: bool
) -> list[Subwords]:
    """Learn the subwords of source and target, or the same ones for both."""
    if joint:
        lines = (line for side in sides for line in side)
        return [Subwords.learn(lines, vocabulary[0])] * 2
    return [Subwords.learn(side, size) for side, size in zip(sides, vocabulary, strict=True)]


def _sampled(file: str | Path, pairs: int, sample: int, max_characters: int) -> Iterator[str]:
    """Yield `sample` of a file's lines, evenly spread, or all of them, without too long ones."""
    for i, line in enumerate(read_lines(file)):
        in_sample = i * sample // pairs != (i + 1) * sample // pairs or sample >= pairs
        if in_sample and len(line) <= max_characters:
            yield line


def _encode(
    folder: Path,
    files: Files,
    subwords: Sequence[Subwords],
    max_length: int,
    pairs: int,
    progress: Progress,
) -> Counts:
    """Write the tokens of a split, chunk by chunk."""
    counts = Counts()
    max_characters = MAX_CHARACTERS_PER_TOKEN * max_length
    with _writer(folder, [tokenizer.size for tokenizer in subwords]) as writer:
        lines = zip_longest(*map(read_lines, files), fillvalue="")
        stream = _without_long_lines(lines, max_characters, counts)
        while chunk := list(islice(stream, CHUNK)):
            sides = [
                tokenizer.encode(texts)
                for tokenizer, texts in zip(subwords, zip(*chunk, strict=True), strict=True)
            ]
            kept: list[tuple[list[int], list[int]]] = []
            for texts, pair in zip(chunk, zip(*sides, strict=True), strict=True):
                if not all(text.strip() for text in texts) or not all(pair):
                    counts.empty += 1
                elif max(map(len, pair)) > max_length:
                    counts.long += 1
                else:
                    kept.append(pair)
            if kept:
                writer.add(list(zip(*kept, strict=True)))
            counts.pairs += len(chunk)
            counts.kept += len(kept)
            progress("encoding", counts.pairs, pairs)
        counts.tokens = list(writer.written)
    if counts.kept == 0:
        raise InvalidInput(
            f"no pair of {display_name(files[0])} and {display_name(files[1])} is left: "
            f"{counts.empty:,} are empty and {counts.long:,} longer than {max_length} tokens"
        )
    return counts


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


@contextmanager
def _writer(folder: Path, sizes: Sequence[int]) -> Iterator[Writer]:
    writer = Writer(folder, sizes)
    try:
        yield writer
    finally:
        writer.close()
