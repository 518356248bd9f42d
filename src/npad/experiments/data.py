"""A folder of parallel text: NAME.LANGUAGE, plain, .gz or .xz. `valid…` validates, `test…` tests, all others train."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from npad.errors import InvalidInput
from npad.experiments.bench import Pairs
from npad.text.files import open_output, read_lines

PACKED = (".gz", ".xz")
Files = tuple[Path, Path]  # source and target


def _by_language(folder: Path) -> dict[str, dict[str, Path]]:
    """The texts NAME.LANGUAGE of a folder, packed or not, by language and name."""
    if not folder.is_dir():
        raise InvalidInput(f"there is no folder {folder}")
    found: dict[str, dict[str, Path]] = {}
    for path in sorted(folder.iterdir()):
        name, _, language = path.name.removesuffix(
            path.suffix if path.suffix in PACKED else ""
        ).rpartition(".")
        if path.is_file() and name:
            twin = found.setdefault(language, {}).setdefault(name, path)
            if twin != path:
                raise InvalidInput(
                    f"{folder} has {twin.name} and {path.name}; which of them is {name}?"
                )
    return found


@dataclass(frozen=True)
class ParallelText:
    """The files of a folder by what they are for."""

    train: dict[str, Files]
    valid: dict[str, Files]
    tests: dict[str, Files]

    @classmethod
    def find(cls, folder: Path, source: str, target: str | None = None) -> ParallelText:
        """The texts of a folder; the target is the other language there, unless it is named."""
        found = _by_language(folder)
        others = sorted(found.keys() - {source})
        for wanted in (source, target):
            if wanted is not None and wanted not in found:
                there = ", ".join(found) or "no texts at all"
                raise InvalidInput(
                    f"{folder} has no texts NAME.{wanted}; it has {there}: see --from and --to"
                )
        if target is None:
            if len(others) != 1:
                raise InvalidInput(
                    f"{folder} has texts in {', '.join(others) or 'one language'}; say which: --to"
                )
            target = others[0]
        if target == source:
            raise InvalidInput(
                f"the source and the target language are both {source}; see --from and --to"
            )
        if lonely := sorted(found[source].keys() ^ found[target].keys()):
            raise InvalidInput(f"{folder} has {lonely[0]} in one of {source} and {target} only")
        files = {name: (found[source][name], found[target][name]) for name in sorted(found[source])}
        parts: dict[str, dict[str, Files]] = {"valid": {}, "test": {}, "train": {}}
        for name, pair in files.items():
            parts[next((part for part in ("valid", "test") if name.startswith(part)), "train")][
                name
            ] = pair
        if len(parts["valid"]) != 1 or not parts["test"]:
            raise InvalidInput(
                f"{folder} must have one text valid… and at least one test…; it has {', '.join(files)}"
            )
        return cls(parts["train"], parts["valid"], parts["test"])

    def sets(self) -> dict[str, Pairs]:
        """The validation set and the test sets, read; `test-newstest2014` is newstest2014, where no other set is."""
        files = self.valid | self.tests
        short = {name: name.removeprefix("test-").removeprefix("valid-") for name in files}
        unique = len(set(short.values())) == len(files)
        return {short[name] if unique else name: read(*pair) for name, pair in files.items()}


def read(source: Path, target: Path) -> Pairs:
    """Two files as pairs of lines."""
    pairs = Pairs(list(read_lines(source)), list(read_lines(target)))
    if len(pairs.sources) != len(pairs.references):
        rule = (
            f"{source} has {len(pairs.sources):,} lines and {target} has {len(pairs.references):,}"
        )
        raise InvalidInput(f"{rule}; line i of the two must be a pair")
    if not any(text.strip() for text in pairs.sources):
        raise InvalidInput(f"{source} has no text in it")
    return pairs


def joined(texts: dict[str, Files], folder: Path) -> Files:
    """Several texts as one, written to a folder; one alone is taken as it is."""
    if not texts:
        raise InvalidInput(
            "there is no text to train on; give --model, or add texts that are not called valid or test"
        )
    if len(texts) == 1:
        return next(iter(texts.values()))
    folder.mkdir(parents=True, exist_ok=True)
    for source, target in texts.values():
        read(source, target)  # each must be pairs, or what follows it would shift
    for side, name in enumerate(("source", "target")):
        with open_output(folder / f"train.{name}") as out:
            for pair in texts.values():
                out.writelines(line + "\n" for line in read_lines(pair[side]))
    return folder / "train.source", folder / "train.target"
