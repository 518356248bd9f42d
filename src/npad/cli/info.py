"""npad info: what a model is, and where it came from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from npad.cli.terminal import console
from npad.model import name_of
from npad.pipelines.translation import SHIPPED, load
from npad.storage import checkpoint


def command(
    model: Annotated[
        str, typer.Argument(help="`en-de`, `toy`, or a folder that `npad train` wrote.")
    ],
    as_json: Annotated[bool, typer.Option("--json", help="All of it as one JSON object.")] = False,
) -> None:
    """What a model is: sizes, noise sites, and how it was trained.

    Examples:

        npad info en-de

        npad info runs/en-cs --json
    """
    translator = load(model)
    about: dict[str, Any] = {}
    if model != "toy":
        folder = checkpoint.resolve(Path(SHIPPED.get(model, model)))
        about = {"folder": str(folder), **checkpoint.read_config(folder)}
    plain: Any = getattr(translator.model, "plain", translator.model)  # as it was trained
    sites = dict(plain.sites)
    counts = getattr(plain, "size", None)
    parameters = counts() if counts else 0
    if as_json:
        print(
            json.dumps(about | {"name": name_of(plain), "parameters": parameters, "sites": sites})
        )
        return
    rows = {"name": name_of(plain), "kind": type(plain).__name__, "parameters": f"{parameters:,}"}
    rows |= {
        name.replace("_", " "): _shown(value) for name, value in about.get("model", {}).items()
    }
    rows["noise sites"] = ", ".join(f"{site} ({width})" for site, width in sites.items())
    if "training" in about:
        made = about["training"]
        rows["trained on"] = f"{made['data']['train']['kept']:,} pairs, {made['update']:,} updates"
        rows["validation perplexity"] = f"{made['perplexity']:.3f}"
        rows["recipe"] = ", ".join(
            f"{name} {_shown(value)}" for name, value in made["recipe"].items() if value is not None
        )
    if about:
        rows["folder"] = f"{about['folder']} (format {about['format']}, npad {about['npad']})"
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows.items():
        table.add_row(name, value)
    console().print(table)


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        return " ".join(f"{name}={_shown(one)}" for name, one in value.items())
    return (
        f"{value:,}"
        if isinstance(value, int)
        else f"{value:g}"
        if isinstance(value, float)
        else str(value)
    )
