"""npad prepare: turn parallel text into a token store."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from npad.cli.options import are_set, field_parameter, field_parameters, option, with_options
from npad.cli.terminal import bar, console
from npad.errors import InvalidInput
from npad.training.prepare import TextData, prepare
from npad.training.store import Store
from npad.validation import ensure_integer

PANEL = "The data"  # of the help
Valid = Annotated[
    tuple[Path, Path] | None, option("Validation pairs.", metavar="SOURCE TARGET", panel=PANEL)
]
Tokenizers = Annotated[
    tuple[Path, Path] | None,
    option(
        "A tokenizer.json per side, instead of learning them.",
        metavar="SOURCE TARGET",
        panel=PANEL,
        hidden=True,
    ),
]
SIZES = "Vocabulary size: one number for both sides, or two: 8000,6000"
TEXT_OPTIONS = [
    field_parameter("vocabulary", str, {"metavar": "N[,N]"}, 8000, SIZES, PANEL),
    *field_parameters(TextData, PANEL, everyday=("joint", "languages")),
]


@with_options(*TEXT_OPTIONS)
def command(
    store: Annotated[Path, typer.Argument(help="Folder to create.")],
    source: Annotated[
        Path, typer.Argument(help="Source lines of the training pairs: plain, .gz, .xz, or -.")
    ],
    target: Annotated[Path, typer.Argument(help="Their translations, line by line.")],
    valid: Valid = None,
    tokenizers: Tokenizers = None,
    *,
    settings: dict[str, Any],
) -> None:
    """Turn parallel text into a token store to train from.

    Learns subwords, encodes the pairs, and counts those that are dropped. Line i of the two files
    is a pair. Memory does not grow with the text.

    Examples:

        npad prepare stores/en-cs train.en.gz train.cs.gz --valid valid.en valid.cs

        npad prepare stores/en-de train.en train.de --vocabulary 8000 --joint
    """
    options = text_fields(settings | are_set(tokenizers=tokenizers))
    with bar("reading", inputs=[source, target, *(valid or ())]) as progress:
        prepared = prepare(store, (source, target), valid, progress=progress, **options)
    console().print(summary(prepared))


def text_fields(options: dict[str, Any]) -> dict[str, Any]:
    """Return options as fields of TextData."""
    if "vocabulary" in options:
        options["vocabulary"] = parse_sizes(options["vocabulary"])
    if "longest" in options:
        longest = options["max_length"] = options.pop("longest")
        ensure_integer("--longest", longest, 1)
    return options


def parse_sizes(text: str) -> tuple[int, int]:
    """Parse --vocabulary: the sizes of both sides.

    Raises:
        InvalidInput: `text` is not one or two whole numbers.
    """
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if len(numbers) not in (1, 2):
        raise InvalidInput(
            f"--vocabulary must be one or two whole numbers, such as 8000 or 8000,6000, "
            f"not {text!r}"
        )
    return numbers[0], numbers[-1]


def summary(store: Store) -> Table:
    """Return a table of the pairs kept and dropped."""
    table = Table(title=f"{store.folder}", title_justify="left", title_style="bold")
    table.add_column("")
    for name in ("pairs", "empty", "too long", "kept", "source tokens", "target tokens"):
        table.add_column(name, justify="right")
    splits: dict[str, Any] = store.about["splits"]
    for split, counts in splits.items():
        columns = (
            *(counts[name] for name in ("pairs", "empty", "long", "kept")),
            *counts["tokens"],
        )
        table.add_row(split, *(f"{count:,}" for count in columns))
    source, target = store.about["vocabulary"]
    table.caption = f"vocabulary: {source:,} + {target:,} tokens" + (
        " (joint)" if store.about["joint"] else ""
    )
    return table
