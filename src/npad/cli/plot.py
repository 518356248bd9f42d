"""npad plot: pictures of a model's attention and of a run's loss."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import torch
import typer

from npad.cli.options import DEFAULT_MODEL, MaxLength, ModelName
from npad.errors import InvalidInput
from npad.evaluate import plots
from npad.pipelines.translation import SHIPPED, load
from npad.storage import checkpoint
from npad.storage import jsonl as log
from npad.text.subwords import END

app = typer.Typer(help="Pictures: `attention` of a model, `loss` of a run.")


@app.callback()
def group() -> None:
    """Pictures: `attention` of a model, `loss` of a run."""


@app.command()
def attention(
    text: Annotated[str, typer.Argument(help="The text to translate.")],
    model: ModelName = DEFAULT_MODEL,
    target: Annotated[
        str | None, typer.Option(help="Its translation; otherwise the model's own, by beam search.")
    ] = None,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="The picture: .png, .svg, .pdf.")
    ] = Path("attention.png"),
    max_length: MaxLength = 200,
) -> None:
    """Show where a model looks while it writes each symbol.

    Example:

        npad plot attention "How do I get to the station?" -o attention.png
    """
    if not text.strip():
        raise InvalidInput("there is nothing to plot: the text is blank")
    if model == "toy":
        raise InvalidInput("toy has no attention to plot; give a folder that npad train wrote")
    saved = checkpoint.load(SHIPPED.get(model, model))
    source, written = saved.subwords
    if target is None:
        target = load(model).translate([text], max_length=max_length)[0].text
    if len(source.encode([text])[0]) > 200:
        raise InvalidInput(
            "the text is too long for a picture; give a sentence of at most 200 symbols"
        )
    symbols, outputs = source.encode([text])[0], written.encode([target])[0]
    weights = []
    with torch.inference_mode():
        state = saved.model.start([symbols])
        for symbol in [saved.model.special.bos, *outputs]:
            _, state = saved.model.step(state, torch.tensor([symbol]))
            weights.append(saved.model.attention(state)[0].tolist())
    if len(weights[0]) != len(symbols) + 1:
        raise InvalidInput(f"{model} was trained without attention")
    plots.attention(
        weights, source.pieces([*symbols, END]), written.pieces([*outputs, END]), output
    )
    print(f"{target}\n{output}")


@app.command()
def loss(
    run: Annotated[Path, typer.Argument(help="A folder that `npad train` wrote.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The picture. [RUN/loss.png]")
    ] = None,
) -> None:
    """Show how training went: perplexity against updates.

    Example:

        npad plot loss runs/en-cs
    """
    records = log.read(run / "log.jsonl")
    if not records:
        raise InvalidInput(f"{run} has no log of training (log.jsonl)")
    plots.losses(records, output or run / "loss.png")
    print(output or run / "loss.png")
