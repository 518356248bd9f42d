"""The list of commands, and the help of each."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import npad as package
import npad.cli as npad_cli
from npad.cli.commands import COMMANDS, build, summary
from runs import npad, printed_here

HELPS = [[name] for name in COMMANDS if name != "plot"]
HELPS += [["plot", "attention"], ["plot", "loss"]]


@pytest.mark.parametrize("command", HELPS, ids=" ".join)
def test_help_has_examples_and_flags_without_a_type(command, capsys, monkeypatch):
    shown = printed_here(capsys, monkeypatch, *command, "--help")
    examples = shown.split("Example")[1]
    assert f"npad {' '.join(command)} " in " ".join(examples.split())
    assert "--help" in shown
    assert "bool" not in shown.lower()


def test_the_command_lists_its_commands_and_knows_its_version(npad_here):
    shown = npad_here().stdout
    assert all(name in shown for name in COMMANDS)
    assert npad_here("--version").stdout.strip() == package.__version__


def test_the_help_needs_no_torch():
    code = (
        "import sys; sys.argv = ['npad', '--help']\n"
        "from npad.cli.main import main\n"
        "try: main()\n"
        "except SystemExit as exit: assert not exit.code\n"
        "heavy = {'torch', 'tokenizers', 'transformers', 'numpy'}\n"
        "print(heavy & sys.modules.keys(), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "translate" in done.stdout
    assert done.stderr == "set()\n"


def test_every_module_with_a_command_is_listed():
    modules = {path.stem for path in Path(npad_cli.__file__).parent.glob("*.py")} - {"__init__"}
    runnable = {
        name
        for name in modules
        if {"command", "app"} & vars(importlib.import_module(f"npad.cli.{name}")).keys()
    }
    assert {name.replace("_", "-") for name in runnable - {"main", "commands"}} == set(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_is_listed_with_the_first_line_of_its_docstring(name):
    assert build(name).help.splitlines()[0] == summary(name)


@pytest.mark.parametrize(
    ("words", "expected"),
    [("npad tran", {"translate", "transcribe"}), ("npad calibrate --che", {"--check-all"})],
)
def test_a_shell_completes_commands_and_options(words, expected):
    """As bash asks for it: the words typed so far, and the number of the last one."""
    asked = {"COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    done = npad("", env=asked | {"_NPAD_COMPLETE": "complete_bash"})
    assert set(done.stdout.split()) == expected


def test_the_completion_of_a_shell_is_shown():
    named = {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}  # the parent is no shell here
    script = npad("--show-completion", "bash", env=named)
    assert "_NPAD_COMPLETE=complete_bash" in script.stdout


@pytest.mark.parametrize(
    ("command", "text"),
    [
        ("train", "--vocabulary N[,N]"),
        ("train", "[adam 0.001, adadelta 1, sgd 0.1]"),
        ("train-actor", "annealed to zero"),
        ("translate", "One JSON object per source: outputs"),
        ("transcribe", "an object each with times"),
    ],
)
def test_help_says_what_an_option_takes_and_writes(command, text, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    assert text in " ".join(printed_here(capsys, monkeypatch, command, "--help").split())
