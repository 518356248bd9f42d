"""How large the package is and how often it repeats itself, against limits. `make house` runs it.

python .ci/house.py           the figures; exits with 1 if one is above its limit
python .ci/house.py -v        and the places behind each figure

A limit is the figure it was set at with a little air. Raise one only by what a new capability
needs, and say so in the commit.
"""

from __future__ import annotations

import ast
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src/npad"
# What each figure may be, and why it is counted.
LIMITS = {
    "lines in the package": 43_350,  # what a newcomer could have to read
    "files in the package": 240,
    "lines of tests": 36_550,  # they are read and run as well
    "class names defined more than once": 0,  # one name, one idea
    "modules with a single importer": 41,  # a part of that importer, until a second one needs it
    "functions taking max_length and max_rows": 8,  # npad.Decoding holds both
    "isinstance tests on decoders": 5,  # decoders answer for themselves
    "imports of npad.search in npad.engine": 0,  # the engine runs tensors; it knows no algorithm
    "public names": 50,  # what `from npad import` offers
}


def parse(folder: Path) -> dict[str, ast.Module]:
    """Return the syntax trees of a package by module name; a package has the name of its folder."""
    trees = {}
    for path in sorted(folder.rglob("*.py")):
        parts = [folder.name, *path.relative_to(folder).with_suffix("").parts]
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        trees[name] = ast.parse(path.read_text(encoding="utf-8"))
    return trees


def lines_in(folder: Path) -> list[str]:
    """Return all lines of the Python files below a folder."""
    texts = (path.read_text(encoding="utf-8") for path in folder.rglob("*.py"))
    return [line for text in texts for line in text.splitlines()]


def repeated_classes(trees: dict[str, ast.Module]) -> list[str]:
    """Return the names of top-level classes that several modules define."""
    homes = defaultdict(list)
    for module, tree in trees.items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                homes[node.name].append(module)
    return [f"{name}: {', '.join(found)}" for name, found in homes.items() if len(found) > 1]


def imported(tree: ast.Module) -> set[str]:
    """Return every dotted name that a module may import, wherever in it."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names


def single_importers(trees: dict[str, ast.Module]) -> list[str]:
    """Return the modules that exactly one other module imports; commands are loaded by name."""
    importers = defaultdict(set)
    for module, tree in trees.items():
        for name in imported(tree) & trees.keys() - {module}:
            importers[name].add(module)
    return [
        f"{name} (by {next(iter(found))})"
        for name, found in sorted(importers.items())
        if len(found) == 1 and not name.startswith("npad.cli.")
    ]


def functions(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Yield the functions and methods of a module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def loose_requests(trees: dict[str, ast.Module]) -> list[str]:
    """Return the functions that take both limits of a decoding request as separate arguments."""
    found = []
    for module, tree in trees.items():
        for node in functions(tree):
            arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            if {"max_length", "max_rows"} <= {argument.arg for argument in arguments}:
                found.append(f"{module}:{node.lineno} {node.name}")
    return found


def decoder_names(trees: dict[str, ast.Module]) -> set[str]:
    """Return the names of the concrete decoders: subclasses of Decoder in npad.search."""
    names: set[str] = set()
    classes = [
        node
        for module, tree in trees.items()
        if module.startswith("npad.search")
        for node in tree.body
        if isinstance(node, ast.ClassDef)
    ]
    for _ in range(3):  # subclasses of subclasses
        for node in classes:
            if {"Decoder", *names} & {getattr(base, "id", None) for base in node.bases}:
                names.add(node.name)
    return names


def decoder_questions(trees: dict[str, ast.Module]) -> list[str]:
    """Return the places that ask whether a value is a decoder of a certain class."""
    decoders = decoder_names(trees)
    found = []
    for module, tree in trees.items():
        for node in ast.walk(tree):
            if not (isinstance(node, ast.Call) and getattr(node.func, "id", "") == "isinstance"):
                continue
            names = {part.id for part in ast.walk(node.args[1]) if isinstance(part, ast.Name)}
            if names & decoders:
                found.append(f"{module}:{node.lineno} {', '.join(sorted(names & decoders))}")
    return found


def searches_in_engine(trees: dict[str, ast.Module]) -> list[str]:
    """Return the imports of npad.search in npad.engine."""
    return [
        f"{module}: {name}"
        for module, tree in trees.items()
        if module.startswith("npad.engine")
        for name in sorted(imported(tree) & trees.keys())
        if name.startswith("npad.search")
    ]


def public_names() -> list[str]:
    """Return the names that the stub of the package lists."""
    tree = ast.parse((SOURCE / "__init__.pyi").read_text(encoding="utf-8"))
    imports = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    names = [alias.name for node in imports for alias in node.names]
    return [name for name in names if not name.startswith("_")]


def figures() -> dict[str, list[str]]:
    """Return what each figure counts."""
    trees = parse(SOURCE)
    return {
        "lines in the package": lines_in(SOURCE),
        "files in the package": list(trees),
        "lines of tests": lines_in(ROOT / "tests"),
        "class names defined more than once": repeated_classes(trees),
        "modules with a single importer": single_importers(trees),
        "functions taking max_length and max_rows": loose_requests(trees),
        "isinstance tests on decoders": decoder_questions(trees),
        "imports of npad.search in npad.engine": searches_in_engine(trees),
        "public names": public_names(),
    }


def main() -> None:
    """Print the figures; exit with 1 if one is above its limit."""
    exceeded = False
    for name, places in figures().items():
        limit = LIMITS[name]
        too_many = len(places) > limit
        exceeded |= too_many
        print(f"{len(places):7,} {name} (limit {limit:,}){' <- too many' if too_many else ''}")
        if "-v" in sys.argv and not name.startswith("lines"):
            print(*(f"          {place}" for place in places), sep="\n")
    if exceeded:
        sys.exit("The package grew or repeats itself: `python .ci/house.py -v` names the places.")


if __name__ == "__main__":
    main()
