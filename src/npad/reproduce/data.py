"""A folder of parallel text in files NAME.LANGUAGE, plain, .gz or .xz.

Names that start with `valid` are the validation set, with `test` test sets; all others train.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from npad.errors import InvalidInput
from npad.reproduce.bench import EvaluationSet
from npad.text.files import open_output, read_lines, read_pairs

COMPRESSED = (".gz", ".xz")
Files = tuple[Path, Path]  # source and target


def _by_language(folder: Path) -> dict[str, dict[str, Path]]:
    """Return the files NAME.LANGUAGE of a folder, compressed or not, by language and name."""
    if not folder.is_dir():
        raise InvalidInput(f"there is no folder {folder}")
    paths: dict[str, dict[str, Path]] = {}
    for path in sorted(folder.iterdir()):
        compression = path.suffix if path.suffix in COMPRESSED else ""
        name, _, language = path.name.removesuffix(compression).rpartition(".")
        if path.is_file() and name:
            twin = paths.setdefault(language, {}).setdefault(name, path)
            if twin != path:
                both = f"{twin.name} and {path.name}"
                raise InvalidInput(f"{folder} has {both}; which of them is {name}?")
    return paths


def _target_language(folder: Path, languages: list[str], source: str, requested: str | None) -> str:
    """Return the requested target language, or the only one besides the source."""
    for language in (source, requested):
        if language is not None and language not in languages:
            has = f"it has {', '.join(languages) or 'no texts at all'}: see --from and --to"
            raise InvalidInput(f"{folder} has no texts NAME.{language}; {has}")
    targets = sorted(set(languages) - {source}) if requested is None else [requested]
    if len(targets) != 1:
        has = ", ".join(targets) or "one language"
        raise InvalidInput(f"{folder} has texts in {has}; say which: --to")
    if targets == [source]:
        both = f"the source and the target language are both {source}"
        raise InvalidInput(f"{both}; see --from and --to")
    return targets[0]


@dataclass(frozen=True)
class ParallelText:
    """The files of a folder by name, split into training, validation and test texts."""

    train: dict[str, Files]
    valid: dict[str, Files]
    tests: dict[str, Files]

    @classmethod
    def find(cls, folder: Path, source: str, target: str | None = None) -> ParallelText:
        """Find the parallel texts of a folder.

        Args:
            folder: holds files NAME.LANGUAGE.
            source: the source language.
            target: the target language; the only other language in the folder by default.

        Raises:
            InvalidInput: a language or a counterpart is missing, the target is ambiguous, or there
                is no validation or test text.
        """
        paths = _by_language(folder)
        target = _target_language(folder, list(paths), source, target)
        if unpaired := sorted(paths[source].keys() ^ paths[target].keys()):
            raise InvalidInput(f"{folder} has {unpaired[0]} in one of {source} and {target} only")
        files = {name: (paths[source][name], paths[target][name]) for name in sorted(paths[source])}
        splits: dict[str, dict[str, Files]] = {"valid": {}, "test": {}, "train": {}}
        for name, pair in files.items():
            split = next((split for split in ("valid", "test") if name.startswith(split)), "train")
            splits[split][name] = pair
        if len(splits["valid"]) != 1 or not splits["test"]:
            raise InvalidInput(
                f"{folder} must have one text valid… and at least one test…; "
                f"it has {', '.join(files)}"
            )
        return cls(splits["train"], splits["valid"], splits["test"])

    def sets(self) -> dict[str, EvaluationSet]:
        """Read the validation set and the test sets.

        Returns:
            The sets by name, without `valid-` and `test-` where the names remain unique.
        """
        files = self.valid | self.tests
        short = {name: name.removeprefix("test-").removeprefix("valid-") for name in files}
        unique = len(set(short.values())) == len(files)
        return {short[name] if unique else name: read(*pair) for name, pair in files.items()}


def read(source: Path, target: Path) -> EvaluationSet:
    """Read two files as pairs of lines.

    Raises:
        InvalidInput: the numbers of lines differ, or the source is blank.
    """
    pairs = EvaluationSet(*read_pairs(source, target))
    if not any(text.strip() for text in pairs.sources):
        raise InvalidInput(f"{source} has no text in it")
    return pairs


def concatenate(texts: dict[str, Files], folder: Path) -> Files:
    """Concatenate parallel texts into two files of a folder; a single text stays where it is.

    Raises:
        InvalidInput: there is no text, or two files are not parallel.
    """
    if not texts:
        raise InvalidInput(
            "there is no text to train on; give --model, or add texts not named valid… or test…"
        )
    if len(texts) == 1:
        return next(iter(texts.values()))
    folder.mkdir(parents=True, exist_ok=True)
    for source, target in texts.values():
        read(source, target)  # an uneven pair would misalign all texts that follow
    for side, name in enumerate(("source", "target")):
        with open_output(folder / f"train.{name}") as out:
            for pair in texts.values():
                out.writelines(line + "\n" for line in read_lines(pair[side]))
    return folder / "train.source", folder / "train.target"
