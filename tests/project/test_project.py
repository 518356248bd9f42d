"""The project's promises about itself: its public names, its layout, and who may import whom."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import npad

SOURCE = Path(npad.__file__).parent
ROOT = Path(__file__).parent.parent.parent
# Each layer may import from itself and from those above it. A module belongs to the most specific
# entry that covers it: `engine.memory` before `engine`.
LAYERS = [
    ["errors", "version"],
    ["validation", "plugins"],
    ["text.english", "metrics"],
    ["specs", "kernels", "engine.pytree"],
    ["model", "engine.memory", "engine.devices"],
    ["engine.cuda_graphs", "engine.next_token", "engine.cost"],
    ["noise", "schedules", "distributions"],
    ["hypotheses", "rows"],
    ["engine", "selectors", "signals", "models.clean"],
    ["rescoring", "constraints"],
    ["search"],
    ["answering", "decoding", "scoring", "signatures", "testing"],
    ["text", "storage.atomic", "storage.regular", "storage.jsonl"],
    ["models"],
    ["storage"],
    ["pipelines", "hf"],
    ["evaluate"],
    ["training"],
    ["calibrate", "reproduce", "scale", "serve"],
    ["cli", "__main__"],
]
# Inference never imports training, and no algorithm knows a concrete model.
FORBIDDEN = [
    ("search", {"models", "text", "storage", "cli"}),
    ("models", {"search.npad", "search.beam", "rescoring", "training"}),
    ("evaluate", {"training"}),
    ("kernels", {"noise", "model", "search"}),
    ("scale", {"training", "reproduce"}),
    ("serve", {"training", "reproduce", "scale"}),
]


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(SOURCE).with_suffix("").parts)


def imports(path: Path) -> set[str]:
    """The npad modules that a file imports, by any form of import, at any place in it."""
    modules = {module_name(each) for each in SOURCE.rglob("*.py")}
    package = module_name(path).split(".")[:-1]
    imported = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:  # from . import x
                parents = ["npad", *package][: len(package) + 2 - node.level]
                base = ".".join([*parents, *([base] if base else [])])
            # `from npad.x import y` may import the module y or the name y of the module x
            names = [
                f"{base}.{alias.name}"
                if f"{base}.{alias.name}".removeprefix("npad.") in modules
                else base
                for alias in node.names
            ]
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            names = [argument.value for argument in node.args if isinstance(argument, ast.Constant)]
        else:
            continue
        imported |= {name.removeprefix("npad.") for name in names if name.startswith("npad.")}
    return imported


def covers(entry: str, module: str) -> bool:
    return module == entry or module.startswith(f"{entry}.")


def layer_of(module: str) -> int:
    """The layer of a module: that of the longest entry that covers it."""
    entries = [(len(e), i) for i, layer in enumerate(LAYERS) for e in layer if covers(e, module)]
    assert entries, f"{module} is in no layer"
    return max(entries)[1]


FILES = [path for path in SOURCE.rglob("*.py") if path.name != "__init__.py"]


@pytest.mark.parametrize("path", FILES, ids=module_name)
def test_imports_point_one_way(path):
    module = module_name(path)
    for imported in imports(path):
        assert layer_of(imported) <= layer_of(module), f"{module} imports {imported}"
        for part, forbidden in FORBIDDEN:
            if covers(part, module):
                assert not any(covers(entry, imported) for entry in forbidden), imported


@pytest.mark.parametrize(
    ("library", "home"),
    [
        ("ray", "scale/ray_cluster.py"),
        ("pyarrow", "scale/formats.py"),
        ("uvicorn", "serve/server.py"),
        ("PIL", "pipelines/pictures.py"),
        ("llguidance", "constraints/grammar.py"),
    ],
)
def test_an_extra_is_imported_in_one_place(library, home):
    pattern = rf"^\s*(import|from) {library}\b"
    found = [path for path in FILES if re.search(pattern, path.read_text(), re.MULTILINE)]
    assert found == [SOURCE / home]


def test_no_two_modules_import_each_other():
    graph = {module_name(path): imports(path) for path in FILES}
    done: set[str] = set()

    def visit(module: str, trail: tuple[str, ...]) -> None:
        assert module not in trail, " -> ".join((*trail, module))
        if module in done:
            return
        for imported in graph.get(module, ()):
            visit(imported, (*trail, module))
        done.add(module)

    for module in graph:
        visit(module, ())


def test_the_packages_are_those_in_the_picture_of_the_design():
    """Every module of the top level and every package is drawn in docs/design.md."""
    picture = re.search(
        r"## Layout\n.*?```\n(.*?)```", (ROOT / "docs/design.md").read_text(), re.DOTALL
    )
    assert picture
    drawn = set(re.findall(r"\w+", picture[1]))
    top = {path.stem for path in SOURCE.glob("*.py")} - {"__init__", "__main__"}
    packages = {path.parent.name for path in SOURCE.rglob("__init__.py")} - {"npad"}
    assert top | packages <= drawn


def test_no_module_is_also_a_function():
    for name in ("decode", "score", "signature"):
        assert not (SOURCE / f"{name}.py").exists()


@pytest.mark.parametrize(
    "page", [*(ROOT / "docs").glob("*.md"), *ROOT.glob("*.md")], ids=lambda page: page.name
)
def test_the_tests_that_a_page_names_are_there(page):
    for name in re.findall(r"tests/\w+\.py", page.read_text()):
        assert (ROOT / name).exists(), name


def test_the_word_is_token_and_never_symbol():
    """As CONTRIBUTING.md says; "symbolic link" is another word."""
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    texts = {str(path.relative_to(SOURCE)): path.read_text() for path in FILES}
    texts |= {str(path.relative_to(ROOT)): path.read_text() for path in pages}
    found = {path for path, text in texts.items() if re.search("symbols?(?![a-z])", text.lower())}
    assert not found


def test_the_package_ships_its_types():
    assert (SOURCE / "py.typed").exists()
