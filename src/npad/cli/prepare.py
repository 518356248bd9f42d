"""npad prepare: parallel text to a token store."""

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
    tuple[Path, Path] | None, typer.Option(metavar="SOURCE TARGET", help="The validation pairs.")
]
Vocabulary = Annotated[
    str | None,
    typer.Option(help="Symbols to learn: one number for both sides, or two: 8000,6000. [8000]"),
]
Joint = Annotated[
    bool | None, typer.Option("--joint", help="One vocabulary for both sides, learnt from both.")
]
Tokenizers = Annotated[
    tuple[Path, Path] | None,
    typer.Option(
        metavar="SOURCE TARGET", help="A tokenizer.json a side, instead of learning them."
    ),
]
Longest = Annotated[
    int | None, typer.Option(help="Symbols; pairs with a longer side are dropped. [100]", min=1)
]
Sample = Annotated[
    int | None,
    typer.Option(help="Pairs to learn the subwords from, evenly spread. [2000000]", min=1),
]


def command(
    store: Annotated[Path, typer.Argument(help="The folder to make.")],
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
    """Turn parallel text into a token store to train from: subwords learnt, pairs encoded, the rest counted.

    Streams: memory does not grow with the text. Line i of the two files is a pair.

    Examples:

        npad prepare stores/en-cs train.en.gz train.cs.gz --valid valid.en valid.cs --vocabulary 30000

        npad prepare stores/en-de train.en train.de --valid valid.en valid.de --vocabulary 8000 --joint
    """
    changes: dict[str, Any] = {
        "joint": joint,
        "max_length": longest,
        "sample": sample,
        "tokenizers": tokenizers,
    }
    changes["vocabulary"] = sizes(vocabulary) if vocabulary else None
    given = {name: value for name, value in changes.items() if value is not None}
    with bar("reading", inputs=[source, target, *(valid or ())]) as show:
        made = prepare(store, (source, target), valid, progress=show, **given)
    console().print(summary(made))


def sizes(text: str) -> tuple[int, int]:
    """The two numbers of a --vocabulary."""
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if len(numbers) not in (1, 2):
        raise InvalidInput(
            f"--vocabulary must be one or two whole numbers, such as 8000 or 8000,6000, not {text!r}"
        )
    return numbers[0], numbers[-1]


def summary(store: Store) -> Table:
    """What became of the pairs."""
    table = Table(title=f"{store.folder}", title_justify="left", title_style="bold")
    table.add_column("")
    for name in ("pairs", "empty", "too long", "kept", "source symbols", "target symbols"):
        table.add_column(name, justify="right")
    splits: dict[str, Any] = store.about["splits"]
    for split, one in splits.items():
        numbers = (one["pairs"], one["empty"], one["long"], one["kept"], *one["tokens"])
        table.add_row(split, *(f"{number:,}" for number in numbers))
    source, target = store.about["vocabulary"]
    table.caption = f"vocabulary: {source:,} + {target:,} symbols" + (
        " (joint)" if store.about["joint"] else ""
    )
    return table
