"""What the blocks of a page print: Python, run in order, and console sessions.

A console block runs in a folder of its own: `$ command`, and below it what it prints. With `numbers
vary` in its first line, numbers and the width of columns may differ. Blocks of `python real` need
the weights of a real model; tests/huggingface/test_real.py runs them.

python tests/helpers/pages.py [PAGE …] [--real]     writes the true output into the documents
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from unittest.mock import patch

from npad.cli.main import main

ROOT = Path(__file__).parent.parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = r"```python{kind}\n(?P<code>.*?)```(?:\n\n```text\n(?P<shown>.*?)```)?"
CONSOLE = re.compile(r"```console(?P<vary> numbers vary)?\n(?P<session>.*?)```", re.DOTALL)
COMMAND = re.compile(r"^\$ (?P<command>.*)\n(?P<shown>(?:(?!\$ ).*\n)*)", re.MULTILINE)
NPAD = re.compile(r"^(?:(?P<input>[^|]*) \| )?npad (?P<arguments>[^|;&<>]*)$")
ENVIRONMENT = {"COLUMNS": "100", "OMP_NUM_THREADS": "1"}


def blocks_with_output(
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


def sessions_with_output(page: Path, folder: Path) -> list[tuple[re.Match[str], str]]:
    """Each console block of a page, run in order in one folder, with what it would show."""
    (folder / "examples").symlink_to(ROOT / "examples")
    results = []
    for block in CONSOLE.finditer(page.read_text()):
        text = ""
        for line in COMMAND.finditer(block["session"]):
            shown = command_output(line["command"], folder)
            text += f"$ {line['command']}\n"
            text += "".join(f"{row.rstrip()}\n" for row in shown.splitlines())
        results.append((block, text))
    return results


def command_output(command: str, folder: Path) -> str:
    """What a command prints; `npad` runs in this process, which has imported it already."""
    if (call := NPAD.match(command)) is None:
        return shell_output(command, folder)
    stdin = shell_output(call["input"], folder) if call["input"] else ""
    words = shell_output(f"printf '%s\\n' {call['arguments']}", folder).splitlines()
    content, given = io.BytesIO(), io.BufferedReader(io.BytesIO(stdin.encode()))
    printed = io.TextIOWrapper(content, encoding="utf-8", write_through=True)
    code: object = None
    with (
        contextlib.chdir(folder),
        contextlib.redirect_stdout(printed),
        contextlib.redirect_stderr(printed),
        patch.object(sys, "argv", ["npad", *words]),
        patch.object(sys, "stdin", io.TextIOWrapper(given)),
        patch.dict(os.environ, ENVIRONMENT),
    ):
        try:
            main()
        except SystemExit as done:
            code = done.code
    shown = content.getvalue().decode()
    assert not code, shown
    return shown


def shell_output(command: str, folder: Path) -> str:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        command,
        shell=True,
        cwd=folder,
        env=os.environ | ENVIRONMENT | {"PATH": path},
        text=True,
        stdout=-1,
        stderr=subprocess.STDOUT,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def rewrite(page: Path, kind: str = "") -> None:
    """Put the true output below every block that has a place for it."""
    text = page.read_text()
    for block, printed in reversed(blocks_with_output(page, kind=kind)):
        if block["shown"] is not None:
            text = text[: block.start("shown")] + printed + text[block.end("shown") :]
    page.write_text(text)
    if "```console" in text and not kind:
        with tempfile.TemporaryDirectory() as folder:
            for block, printed in reversed(sessions_with_output(page, Path(folder))):
                text = text[: block.start("session")] + printed + text[block.end("session") :]
        page.write_text(text)


if __name__ == "__main__":
    real = "--real" in sys.argv
    for name in [Path(word) for word in sys.argv[1:] if word != "--real"] or PAGES:
        rewrite(name, " real" if real else "")
