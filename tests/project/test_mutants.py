"""The mutation tester makes the wrong changes that it says, and tests notice them or not."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

import mutations
from mutants_tables import AREAS, EQUIVALENT, LEFT_OUT


def changes(source: str) -> set[tuple[str, str]]:
    return {
        (mutations.shown(node), mutations.shown(wrong))
        for node, _, boolean, _ in mutations.visited(ast.parse(source))
        for wrong in mutations.wrong_versions(node, boolean)
    }


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("a < b", {("a < b", "a <= b")}),
        ("a == b", {("a == b", "a != b")}),
        ("a + b", {("a + b", "a - b")}),
        ("a and b", {("a and b", "a or b")}),
        ("not a", {("not a", "a")}),
        ("a[7]", {("7", "8")}),
        ("a = True", {("True", "False")}),
        ("max(a, b)", {("max(a, b)", "min(a, b)"), ("max(a, b)", "pass")}),
        ("a = b.clamp(c)", {("b.clamp(c)", "b")}),
        ("a = f(b, c=d)", {("f(b, c=d)", "f(b)")}),
        ("a = f(a)", {("a = f(a)", "pass")}),
        ("a = [b for b in c if d]", {("for b in c if d", "for b in c")}),
        ("if a < b: c", {("a < b", "a <= b"), ("if a < b", "if not a < b")}),
        ("def f() -> bool: return a", {("return a", "return not a")}),
        ("def f(): raise E(1 + 2)", {("raise E(1 + 2)", "pass")}),
    ],
)
def test_wrong_changes_by_hand(source, expected):
    assert changes(source) == expected


@pytest.mark.parametrize(
    "source",
    [
        '"""A docstring."""',
        "x: Literal[1] = y",
        "@dataclass(frozen=True)\nclass A: pass",
        "x = f'{a + 1}'",
        "assert a < b",
        "def __repr__(self): return 1 + 2",
        "x: int = Field(metadata={'help': 1})",
    ],
)
def test_declarations_and_texts_stay(source):
    assert changes(source) == set()


def test_a_sample_does_not_depend_on_the_rest():
    every = mutations.generate("rows.py")
    chosen = mutations.sample(every, 5, seed=0)
    assert len({mutant.key for mutant in every}) == len(every)
    others = [mutant for mutant in every if mutant not in chosen]
    assert mutations.sample([*others[::2], *chosen], 5, seed=0) == chosen
    assert mutations.sample(every, 5, seed=1) != chosen


def test_listed_lines_modules_and_tests_exist():
    """Lines of equivalent changes occur, and so do modules and tests."""
    for file, place, *_ in EQUIVALENT:
        text = (mutations.SOURCE / file).read_text()
        lines = set(map(mutations.without_comment, text.splitlines()))
        assert place in lines or f"def {place.rpartition('.')[2]}(" in text, (file, place)
    for file, tests in AREAS.items():
        assert (mutations.SOURCE / file).exists(), file
        assert tests


@pytest.mark.parametrize("folder", ["storage", "scale", "pipelines", "training", "serve"])
def test_every_module_of_these_folders_has_its_tests(folder):
    for path in (mutations.SOURCE / folder).glob("[!_]*.py"):
        assert (f"{folder}/{path.name}" in AREAS) != (f"{folder}/{path.name}" in LEFT_OUT), path


MODULE = "def larger(a, b):\n    return a if a > b else b\n\n\ndef unseen(a):\n    return a + 1\n"
TESTS = "from npad.tiny import larger\n\ndef test_larger():\n    assert larger(2, 3) == 3\n"
SCRIPT = """
import sys
from pathlib import Path
import mutants, mutations
mutations.ROOT = Path(sys.argv.pop())
mutations.SOURCE = mutations.ROOT / "src/npad"
mutants.PRELOADED = ["pytest", "hypothesis", "xdist.plugin", "_hypothesis_pytestplugin"]
mutants.AREAS.clear()
mutants.AREAS["tiny.py"] = ("test_tiny.py",)
mutants.main()
"""


def test_a_wrong_change_is_killed_where_a_test_sees_it(tmp_path):
    for name, text in {"src/npad/__init__.py": "", "src/npad/tiny.py": MODULE}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/test_tiny.py").write_text(TESTS)
    record = tmp_path / "record.json"

    def run():
        command = [sys.executable, "-c", SCRIPT, "--json", str(record), str(tmp_path)]
        return subprocess.run(
            command, capture_output=True, text=True, cwd=Path(mutations.__file__).parent
        )

    first = run()
    assert first.returncode == 1, first.stderr
    assert "too many survive" in first.stderr
    found = json.loads(record.read_text())
    assert (found["killed"], found["generated"]) == (1, 4)  # a > b negated
    assert sorted(found["survivors"]) == [
        "tiny.py larger: a > b -> a >= b #0",
        "tiny.py unseen: 1 -> 2 #0",
        "tiny.py unseen: a + 1 -> a - 1 #0",
    ]
    assert (tmp_path / "src/npad/tiny.py").read_text() == MODULE
    assert "killed: src/npad/tiny.py:2" in first.stdout
    again = run()  # from the records
    assert "/4 " not in again.stdout
    assert json.loads(record.read_text()) == found
    (tmp_path / "tests/test_tiny.py").write_text(TESTS.replace("== 3", "== 4"))
    assert "without a change, a test fails" in run().stderr
