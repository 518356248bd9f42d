"""npad decoders: the decoders in a list, and the options of each."""

from __future__ import annotations

import inspect
from typing import Annotated, Any, get_args

import typer

from npad.cli.decoder_options import complete_decoder, is_everyday, parameter_of, summary_of
from npad.cli.help import Page, Rows, flags, split
from npad.cli.own_parts import register_own_parts
from npad.errors import InvalidInput
from npad.search.registry import DECODERS
from npad.search.request import options_of
from npad.validation import did_you_mean

SENTENCE = '"There is nothing better than a cup of coffee in the morning."'
FURTHER = """\
npad decoders NAME shows the options of one, an example and its documentation. A decoder can be
written with its options in one word, as beam(width=10), wherever one is named."""


def command(
    name: Annotated[
        str | None,
        typer.Argument(
            help="The decoder to explain; without it, all are listed.",
            autocompletion=complete_decoder,
        ),
    ] = None,
) -> None:
    """List the decoders, or explain one with its options.

    Examples:

        npad decoders

        npad decoders beam
    """
    typer.echo(_list() if name is None else _explanation(name))


def _list() -> str:
    """Return the decoders in two groups, one line each."""
    DECODERS.load_all()
    groups: dict[str, dict[str, str]] = {"Everyday": {}, "Research": {}}
    for name, kind in DECODERS.kinds.items():
        groups["Everyday" if is_everyday(kind) else "Research"][name] = summary_of(kind)
    page = Page("Decoders, for --decoder and --inner of any command.")
    page.sections(groups)
    page.paragraphs([FURTHER])
    return str(page)


def _explanation(name: str) -> str:
    """Return what a decoder does, its options, an example and its documentation."""
    register_own_parts(["--decoder", name])
    kind = DECODERS.kind_of(name)
    if kind is None:
        hint = did_you_mean(name, DECODERS.names()) or "; npad decoders lists them"
        raise InvalidInput(f"there is no decoder {name}{hint}")
    decoder = kind()
    page = Page(f"{name}: {summary_of(type(decoder))}")
    paragraphs = split(inspect.getdoc(decoder))[0][1:]
    page.paragraphs(text for text in paragraphs if not text.startswith("Attributes:"))
    page.sections({"Options": _options(kind)})
    words = ("npad translate --decoder", name, decoder.example, SENTENCE)
    page.command_lines([" ".join(filter(None, words))])
    if decoder.page:
        page.paragraphs([f"Documentation: docs/{decoder.page}"])
    return str(page)


def _options(kind: Any) -> Rows:
    """Return the options of a decoder with their help, its usual ones first."""
    options = sorted(options_of(kind), key=lambda o: not o.field.metadata.get("everyday", False))
    rows = {}
    for option in options:
        shown: Any = get_args(parameter_of(option).annotation)[1]
        declared = [shown.default, *shown.param_decls]  # typer has the first as the default
        names = [name for names in declared for name in names.split("/")]
        rows[flags(names, shown.metavar or "")] = shown.help
    return rows
