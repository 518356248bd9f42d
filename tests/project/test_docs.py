"""The documents show what the code does: Python blocks run and print the text block below.

A console block runs in a folder of its own: `$ command`, and below it what it prints. With `numbers
vary` in its first line, numbers and the width of columns may differ. Blocks of `python real` need
the weights of a real model; tests/huggingface/test_real.py runs them.

python tests/project/test_docs.py [PAGE …] [--real]     writes the true output into the documents
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import torch

from cases import assert_same, key, with_zeros
from npad import NPAD, Noise, decode
from npad.models.table import TableModel

ROOT = Path(__file__).parent.parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
NEED_TRANSFORMERS = {"decoding.md", "huggingface.md"}
BLOCK = r"```python{kind}\n(?P<code>.*?)```(?:\n\n```text\n(?P<shown>.*?)```)?"


CONSOLE = re.compile(r"```console(?P<vary> numbers vary)?\n(?P<session>.*?)```", re.DOTALL)
COMMAND = re.compile(r"^\$ (?P<command>.*)\n(?P<shown>(?:(?!\$ ).*\n)*)", re.MULTILINE)


def sessions(page: Path, folder: Path) -> list[tuple[re.Match[str], str]]:
    """Each console block of a page, run in order in one folder, with what it would show."""
    (folder / "examples").symlink_to(ROOT / "examples")
    bin = Path(sys.executable).parent
    environment = os.environ | {
        "PATH": f"{bin}:{os.environ['PATH']}",
        "COLUMNS": "100",
        "OMP_NUM_THREADS": "1",
    }
    results = []
    for block in CONSOLE.finditer(page.read_text()):
        text = ""
        for one in COMMAND.finditer(block["session"]):
            done = subprocess.run(
                one["command"],
                shell=True,
                cwd=folder,
                env=environment,
                text=True,
                stdout=-1,
                stderr=subprocess.STDOUT,
            )
            assert done.returncode == 0, done.stdout
            text += f"$ {one['command']}\n" + "".join(
                f"{line.rstrip()}\n" for line in done.stdout.splitlines()
            )
        results.append((block, text))
    return results


def loosely(text: str) -> str:
    """Without numbers, and without what they and their width decide."""
    text = text.replace("  best so far", "")
    return re.sub(r"[─━\s]+", " ", re.sub(r"-?[\d,.]*\d(:\d+)*%?", "#", text))


@pytest.mark.parametrize(
    "page", [page for page in PAGES if "```console" in page.read_text()], ids=lambda page: page.name
)
def test_a_page_shows_what_its_commands_print(page, tmp_path):
    if page.name in NEED_TRANSFORMERS:
        pytest.importorskip("transformers")
    for block, text in sessions(page, tmp_path):
        as_read = loosely if block["vary"] else str
        assert as_read(text) == as_read(block["session"])


def outputs(
    page: Path, namespace: dict[str, object] | None = None, kind: str = ""
) -> list[tuple[re.Match[str], str]]:
    """Each Python block of a page, run in order in one namespace, with what it printed."""
    namespace = {} if namespace is None else namespace
    namespace["__name__"] = page.stem
    results = []
    for block in re.finditer(BLOCK.format(kind=kind), page.read_text(), re.DOTALL):
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(compile(block["code"], page.name, "exec", dont_inherit=True), namespace)
        results.append((block, out.getvalue()))
    return results


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_shows_its_true_output(page):
    if page.name in NEED_TRANSFORMERS:
        pytest.importorskip("transformers")
    for block, printed in outputs(page):
        assert printed == (block["shown"] or "")


def test_the_decoders_of_the_page_keep_the_theorems():
    page: dict[str, object] = {}
    outputs(ROOT / "docs/extending.md", page)
    model = with_zeros(TableModel.random(4, 4, seed=2, sentences=3, dtype=torch.float64), seed=2)
    for decoder in (page["Branching"](6), page["EpsilonGreedy"](0.4)):
        together = decode(model, [0, 1, 2], decoder, 5)
        for i in range(3):
            possible = {(output.tokens, output.finished) for output in model.outputs(i, 5)}
            assert {(one.tokens, one.finished) for one in together[i]} <= possible
            assert_same(decode(model, [i], decoder, 5, ids=[i]), [together[i]])
        best = decode(model, [0, 1, 2], NPAD(decoder, 5, Noise(0.5)), 5)
        assert all(
            key(a[0]) >= (b[0].finished, b[0].log_prob - 1e-9)
            for a, b in zip(best, together, strict=True)
        )


def test_the_readmes_table_is_the_demos():
    recipe = re.findall(
        r"^\t\$\(BIN\)/npad (compare .*)$", (ROOT / "Makefile").read_text(), re.MULTILINE
    )
    demo = subprocess.run(
        [sys.executable, "-m", "npad", *shlex.split(recipe[-1])],
        capture_output=True,
        text=True,
        check=True,
    )
    table = re.search(r"```\n(ich verstehe.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert table[1] in "\n".join(line.rstrip() for line in demo.stdout.splitlines())


def test_a_pages_links_lead_somewhere():
    for page in PAGES:
        for target in re.findall(r"\]\((?!http)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def rewrite(page: Path, kind: str = "") -> None:
    """Put the true output below every block that has a place for it."""
    text = page.read_text()
    for block, printed in reversed(outputs(page, kind=kind)):
        if block["shown"] is not None:
            text = text[: block.start("shown")] + printed + text[block.end("shown") :]
    page.write_text(text)
    if "```console" in text and not kind:
        with tempfile.TemporaryDirectory() as folder:
            for block, printed in reversed(sessions(page, Path(folder))):
                text = text[: block.start("session")] + printed + text[block.end("session") :]
        page.write_text(text)


def test_the_advice_on_decoders_quotes_recorded_results():
    readme = (ROOT / "README.md").read_text()
    advice = re.search(r"\*\*Which decoder\?\*\*.*?\n\n", readme, re.DOTALL)
    assert advice
    assert readme.index(advice[0]) < 200
    reports = [ROOT / "docs/results" / name / "README.md" for name in ("en-de", "multi30k-adam")]
    measured = set(re.findall(r"\b\d\d\.\d\d\b", "".join(path.read_text() for path in reports)))
    quoted = re.findall(r"\b\d\d\.\d\d\b", advice[0])
    assert len(quoted) == 8
    assert set(quoted) <= measured


if __name__ == "__main__":
    real = "--real" in sys.argv
    for one in [Path(name) for name in sys.argv[1:] if name != "--real"] or PAGES:
        rewrite(one, " real" if real else "")
