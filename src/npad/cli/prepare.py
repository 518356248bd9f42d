"""npad prepare: turn parallel text into a token store."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from npad.cli.terminal import bar, console
from npad.errors import InvalidInput
from npad.training.prepare import prepare
from npad.training.store import Store

Valid = Annotated[
    tuple[Path, Path] | None, typer.Option(metavar="SOURCE TARGET", help="Validation pairs.")
]
Vocabulary = Annotated[
    str | None,
    typer.Option(help="Vocabulary size: one number for both sides, or two: 8000,6000. [8000]"),
]
Joint = Annotated[bool | None, typer.Option("--joint", help="Learn one vocabulary for both sides.")]
Tokenizers = Annotated[
    tuple[Path, Path] | None,
    typer.Option(
        metavar="SOURCE TARGET", help="A tokenizer.json per side, instead of learning them."
    ),
]
Longest = Annotated[
    int | None, typer.Option(help="Drop pairs with more tokens than this on a side. [100]", min=1)
]
Sample = Annotated[
    int | None,
    typer.Option(help="Pairs to learn subwords from, evenly spaced. [2000000]", min=1),
]


def command(
    store: Annotated[Path, typer.Argument(help="Folder to create.")],
    source: Annotated[
        Path, typer.Argument(help="Source lines of the training pairs: plain, .gz, .xz, or -.")
    ],
    target: Annotated[Path, typer.Argument(help="Their translations, line by line.")],
    valid: Valid = None,
    vocabulary: Vocabulary = None,
    joint: Joint = None,
    tokenizers: Tokenizers = None,
    longest: Longest = None,
    sample: Sample = None,
) -> None:
    """Turn parallel text into a token store to train from.

    Learns subwords, encodes the pairs, and counts those that are dropped. Line i of the two files
    is a pair. Memory does not grow with the text.

    Examples:

        npad prepare stores/en-cs train.en.gz train.cs.gz --valid valid.en valid.cs

        npad prepare stores/en-de train.en train.de --vocabulary 8000 --joint
    """
    options: dict[str, Any] = {
        "joint": joint,
        "max_length": longest,
        "sample": sample,
        "tokenizers": tokenizers,
        "vocabulary": parse_sizes(vocabulary) if vocabulary else None,
    }
    options = {name: value for name, value in options.items() if value is not None}
    with bar("reading", inputs=[source, target, *(valid or ())]) as progress:
        prepared = prepare(store, (source, target), valid, progress=progress, **options)
    console().print(summary(prepared))


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
