"""Options that several commands share: which model, which device, how large."""

from __future__ import annotations

from typing import Annotated

import typer

OUTPUT = "What to write"
DEFAULT_MODEL = "en-de"

ModelName = Annotated[
    str,
    typer.Option(
        "--model", "-m", help="`en-de`, `toy`, a folder of `npad train`, `hf:NAME_OR_PATH`."
    ),
]
Device = Annotated[
    str,
    typer.Option(
        metavar="NAME", help="`cpu`, `cuda`, `cuda:1`, …; `auto` takes a GPU if there is one."
    ),
]
Precision = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help="Of NPAD's noisy chains: float32, bfloat16, float16, int8. Scores stay float32.",
    ),
]
MaxLength = Annotated[
    int, typer.Option(help="Symbols an output may have, its end included.", min=1)
]
MaxSource = Annotated[int, typer.Option(help="Symbols a source may have.", min=1)]
MaxRows = Annotated[
    int,
    typer.Option(
        help="Rows (sentences × chains × beams) at a time; for memory and speed only.", min=1
    ),
]
