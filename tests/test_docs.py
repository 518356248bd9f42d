"""What the documents show is what the code does: every Python block runs, and prints the text block below it.

python tests/test_docs.py     writes the true output into the documents
"""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"```python\n(?P<code>.*?)```(?:\n\n```text\n(?P<shown>.*?)```)?", re.DOTALL)


def outputs(page: Path) -> list[tuple[re.Match[str], str]]:
    """Each Python block of a page, run in order in one namespace, with what it printed."""
    namespace: dict[str, object] = {"__name__": page.stem}
    results = []
    for block in BLOCK.finditer(page.read_text()):
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(compile(block["code"], page.name, "exec", dont_inherit=True), namespace)
        results.append((block, out.getvalue()))
    return results


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_shows_its_true_output(page):
    for block, printed in outputs(page):
        assert printed == (block["shown"] or "")


def test_the_readmes_table_is_the_demos():
    import subprocess
    import sys

    demo = subprocess.run([sys.executable, ROOT / "examples/demo.py"], capture_output=True, text=True, check=True)
    table = re.search(r"```\n(ich verstehe.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert table[1] in "\n".join(line.rstrip() for line in demo.stdout.splitlines())


def test_a_pages_links_lead_somewhere():
    for page in PAGES:
        for target in re.findall(r"\]\((?!http)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def rewrite(page: Path) -> None:
    """Put the true output below every block that has a place for it."""
    text = page.read_text()
    for block, printed in reversed(outputs(page)):
        if block["shown"] is not None:
            text = text[: block.start("shown")] + printed + text[block.end("shown") :]
    page.write_text(text)


if __name__ == "__main__":
    for one in PAGES:
        rewrite(one)
