"""The list of commands, and the help of each."""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import npad as package
import npad.cli as npad_cli
from npad.cli.commands import COMMANDS, build, summary
from runs import npad

HELPS = [[name] for name in COMMANDS if name != "plot"]
HELPS += [["plot", "attention"], ["plot", "loss"]]
SCREEN = 60, 80  # lines and columns


@pytest.mark.parametrize("command", HELPS, ids=" ".join)
def test_help_has_examples_and_flags_without_a_type(command, printed_here):
    shown = printed_here(*command, "--help")
    examples = shown.split("Example")[1]
    assert f"npad {' '.join(command)} " in " ".join(examples.split())
    assert "--help" in shown
    assert "bool" not in shown.lower()


@pytest.mark.parametrize("command", [[], ["plot"], *HELPS], ids=" ".join)
def test_help_fits_on_a_screen(command, printed_here, monkeypatch):
    monkeypatch.setattr(
        "npad.cli.help.shutil.get_terminal_size", lambda: os.terminal_size((80, 24))
    )
    shown = printed_here(*command, "--help").splitlines()
    assert len(shown) <= SCREEN[0]
    assert max(map(len, shown)) <= SCREEN[1]


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_all_options_has_the_rest(name, printed_here):
    """And says how many there are."""
    command = build(name)
    options = [param for param in command.params if param.param_type_name == "option"]
    further = getattr(command, "further", set())
    short = printed_here(name, "--help")
    if not further:
        assert "--help-all" not in short
        return
    assert f"--help-all Show all {len(options) + 2} options." in " ".join(short.split())
    whole = printed_here(name, "--help-all")
    for option in options:
        listed = re.compile(
            rf"^ +(-., )?(--\S+, )?--(\[no-\])?{option.opts[0].lstrip('-')}\b", re.M
        )
        assert listed.search(whole)
        assert bool(listed.search(short)) == (option.name not in further)


def test_help_has_color_on_a_terminal_only_and_not_against_the_users_will(tmp_path):
    """A pseudo-terminal, as `script` makes it."""
    command = f"{sys.executable} -m npad plot --help"
    for environment, bold in (({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)):
        done = subprocess.run(
            ["script", "-qec", command, "/dev/null"],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "TERM": "xterm", **environment},
        )
        assert ("\033[1m" in done.stdout) == bold
    assert "\033" not in npad("plot", "--help").stdout


def test_the_command_lists_its_commands_in_groups_and_knows_its_version(npad_here):
    shown = npad_here().stdout
    titles = [line[:-1] for line in shown.splitlines() if line[-1:] == ":"]
    assert titles == ["Use a model", "Measure", "Train", "Research", "Options"]
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
    [
        ("npad tran", {"translate", "transcribe"}),
        ("npad calibrate --che", {"--check-all"}),
        ("npad translate --top", {"--top-k", "--top-p"}),
        ("npad translate --decoder b", {"beam", "best-of"}),
        ("npad translate -d npad --distribution s", {"student-t"}),
        ("npad translate --finish ", {"shrink", "compete", "pool"}),
        ("npad translate --model en", {"en-de", "enormous"}),
        ("npad evaluate --metric ch", {"chrf"}),
        ("npad transcribe --format s", {"srt"}),
        ("npad transcribe -m hf:enormous --language d", {"de", "da"}),
        ("npad transcribe -m none --language d", set()),
        ("npad decoders st", {"steered", "stochastic-beam"}),
    ],
)
def test_bash_completes_commands_options_and_values(
    words, expected, tmp_path, printed_here, monkeypatch
):
    """As bash asks for it: the words typed so far, and the number of the last one."""
    (tmp_path / "enormous").mkdir()
    multilingual = {"lang_to_id": {"<|de|>": 1, "<|cs|>": 2, "<|da|>": 3}}
    (tmp_path / "enormous/generation_config.json").write_text(json.dumps(multilingual))
    asked = {"COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    monkeypatch.chdir(tmp_path)
    for name, value in (asked | {"_NPAD_COMPLETE": "complete_bash"}).items():
        monkeypatch.setenv(name, value)
    assert set(printed_here().split()) == expected


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_show_what_a_decoder_does(shell):
    asked = {"_TYPER_COMPLETE_ARGS": "npad translate -d be", "_NPAD_COMPLETE": f"complete_{shell}"}
    shown = npad("", env=asked | {"_TYPER_COMPLETE_FISH_ACTION": "get-args"}).stdout
    assert "beam" in shown
    assert "Keep the best prefixes at every step." in shown
    assert "greedy" not in shown


@pytest.mark.parametrize(
    ("command", "text"),
    [
        ("train", "--vocabulary N[,N]"),
        ("train", "[adam 0.001, adadelta 1, sgd 0.1]"),
        ("train-actor", "annealed to zero"),
        ("train-actor", "--data PATH"),
        ("translate", "One JSON object per source: outputs"),
        ("transcribe", "an object with times per recording"),
    ],
)
def test_help_says_what_an_option_takes_and_writes(command, text, printed_here, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    assert text in " ".join(printed_here(command, "--help-all").split())
