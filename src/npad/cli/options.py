"""Options that several commands share: model, device, precision and limits."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from npad.pipelines.translation import Translator

OUTPUT = "What to write"
DEFAULT_MODEL = "en-de"

ModelName = Annotated[
    str,
    typer.Option(
        "--model",
        "-m",
        help="`en-de`, `toy`, a folder of `npad train`, `hf:NAME_OR_PATH`, `chat:NAME_OR_PATH`, "
        "asked by its chat template, or a name in a Python file, as `my.py:make`.",
    ),
]
Device = Annotated[
    str,
    typer.Option(
        metavar="NAME", help="`cpu`, `cuda`, `cuda:1`, …; `auto` uses a GPU if there is one."
    ),
]
Precision = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help="Precision of NPAD's noisy chains: float32, bfloat16, int8. Scores stay in float32.",
    ),
]
Json = Annotated[
    bool,
    typer.Option(
        "--json",
        help="One JSON object per output: scores, signature.",
        rich_help_panel=OUTPUT,
    ),
]
Nbest = Annotated[
    int,
    typer.Option(
        help="Outputs per source, in Moses' format unless --json.", min=1, rich_help_panel=OUTPUT
    ),
]
OutputFile = Annotated[
    Path | None, typer.Option("--output", "-o", help="File to write instead of stdout.")
]
MAX_LENGTH = 200
MaxLength = Annotated[
    int, typer.Option(help="Tokens an output may have, its end token included.", min=1)
]
MaxSource = Annotated[
    int, typer.Option(help="Tokens a source may have; the model's own limit holds, too.", min=1)
]
MaxRows = Annotated[
    int,
    typer.Option(
        help="Rows (sentences × chains × beams) at a time; affects memory and speed only.", min=1
    ),
]


def source_limit(translator: Translator, max_source: int) -> str:
    """Return the limit on sources that is in force, as error messages name it."""
    if translator.longest < max_source:
        return f"the model's limit of {translator.longest:,}"
    return f"--max-source {max_source:,}"
