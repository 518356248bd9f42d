"""The subcommands of `npad`, imported when they run: `npad --help` does not import torch."""

from __future__ import annotations

import importlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer
import typer.core
import typer.main

from npad.cli.help import Command, Group, Rows
from npad.cli.startup import importing
from npad.cli.terminal import note
from npad.plugins import DECODERS, installed
from npad.version import __version__

# In the order of the help. A command is a module of this package with a function `command`, or a
# typer `app` of several; its line in the help is the first one of the docstring of `command`, or of
# the app's callback `group`.
GROUPS = {
    "Use a model": ("translate", "transcribe", "caption", "serve", "fetch", "info", "decoders"),
    "Measure": ("compare", "score", "evaluate", "calibrate", "fit-confidence", "bench"),
    "Train": ("prepare", "train", "train-actor", "pack", "plot"),
    "Research": ("reproduce",),
}
COMMANDS = tuple(name for names in GROUPS.values() for name in names)
# Old spellings, which still work for one version.
RENAMED = {"--noise": "--distribution", "--decoders": "--inner"}
SUMMARY = re.compile(r'^def (?:command|group)\(.*?\) -> None:\n    """(.*?)(?:""")?$', re.M | re.S)
SETTINGS = {"help_option_names": ["-h", "--help"]}


def module_name(command: str) -> str:
    """Return the name of a command's module."""
    return command.replace("-", "_")


def summary(name: str) -> str:
    """Return the first line of a command's help, read without importing what it imports."""
    source = Path(__file__).with_name(f"{module_name(name)}.py").read_text(encoding="utf-8")
    found = SUMMARY.search(source)
    assert found, f"{name} has no docstring"
    return found[1]


def build(name: str) -> Any:
    """Import a subcommand and return it as a click command.

    The options of decoders are read from the registries now, so that a decoder registered at run
    time has its options as well.
    """
    with importing():
        module = importlib.import_module(f"npad.cli.{module_name(name)}")
    if hasattr(module, "app"):
        return typer.main.get_command(module.app)
    group = typer.Typer(
        add_completion=False, pretty_exceptions_enable=False, context_settings=SETTINGS
    )
    group.command(name, cls=Command)(module.command)
    return typer.main.get_command(group)


def respelled(command: str, arguments: Sequence[str]) -> tuple[str, list[str]]:
    """Return a command and its arguments in today's spelling, with a warning for each old one."""
    words = list(arguments)
    for i in range(words.index("--") if "--" in words else len(words)):
        option, equals, value = words[i].partition("=")
        if option in RENAMED:
            note(f"warning: {option} is now {RENAMED[option]}; the old name will be removed")
            words[i] = f"{RENAMED[option]}{equals}{value}"
        elif (command, option) == ("calibrate", "--confidence"):
            note("warning: calibrate --confidence is now npad fit-confidence SOURCE REFERENCE")
            references = [value] if equals else words[i + 1 : i + 2]
            rest = words[:i] + words[i + (1 if equals else 2) :]
            return respelled("fit-confidence", [*rest, *references])
    return command, words


class LazyGroup(Group):
    """A group that lists stubs in its help, and imports a subcommand when it runs."""

    def listed(self, ctx: Any) -> dict[str, Rows]:
        return {title: {name: summary(name) for name in names} for title, names in GROUPS.items()}

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in COMMANDS:
            return None
        return typer.core.TyperCommand(cmd_name, help=summary(cmd_name))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if not ctx.resilient_parsing:
            command, arguments = respelled(args[0], args[1:])
            args = [command, *arguments]
        name, stub, arguments = super().resolve_command(ctx, args)
        files = any(".py:" in argument for argument in arguments)
        own = files or installed(DECODERS)
        if name is not None and own and not ctx.resilient_parsing:  # no file is run to complete it
            with importing():
                from npad.cli.own_parts import register_own_parts
            register_own_parts(arguments)
        return name, stub if name is None else build(name), arguments


app = typer.Typer(
    name="npad",
    cls=LazyGroup,
    help="Decode better from the sequence model you already have.",
    pretty_exceptions_enable=False,
    context_settings=SETTINGS,
)


def _print_version(requested: bool) -> None:
    if requested:
        print(__version__)
        raise typer.Exit


@app.callback()
def options(
    version: bool = typer.Option(
        False, "--version", callback=_print_version, is_eager=True, help="Print the version."
    ),
) -> None:
    """Decode better from the sequence model you already have."""
