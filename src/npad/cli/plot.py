"""npad plot: plots of a model's attention and of a run's loss."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from npad.cli.help import Command, Group
from npad.cli.options import DEFAULT_MODEL, AsText, MaxLength, ModelName, option
from npad.errors import InvalidInput, NpadError
from npad.evaluate import plots
from npad.evaluate.overlays import token_attention
from npad.pipelines.loading import load
from npad.pipelines.names import ModelReference
from npad.storage import checkpoint, jsonl
from npad.text.files import Lines
from npad.text.subwords import END
from npad.training import run as training
from npad.validation import counted

MAX_TOKENS = 200  # of a source whose attention is still legible in a plot

app = typer.Typer(cls=Group, add_completion=False)


@app.callback()
def group() -> None:
    """Plot the attention of a model, or the loss of a training run."""


@app.command(cls=Command)
def attention(
    text: Annotated[
        str, typer.Argument(help="Text to translate, or a file of one line.", metavar="TEXT|FILE")
    ],
    model: ModelName = DEFAULT_MODEL,
    are_texts: AsText = False,
    target: Annotated[
        str | None, option("Its translation; by default the model's, by beam search.")
    ] = None,
    output: Annotated[Path, option("File of the plot: .png, .svg, .pdf.", "--output", "-o")] = Path(
        "attention.png"
    ),
    max_length: MaxLength = 200,
) -> None:
    """Plot the attention weights of every output token.

    Example:

        npad plot attention "How do I get to the station?" -o attention.png
    """
    lines = list(Lines.of(text, are_texts))
    if len(lines) != 1:
        raise InvalidInput(f"a plot shows one text, and {text} has {counted(len(lines), 'line')}")
    (text,) = lines
    if not text.strip():
        raise InvalidInput("there is nothing to plot: the text is blank")
    folder = ModelReference.parse(model).require_folder("be plotted")
    saved = checkpoint.load(folder)
    source_side, target_side = saved.text_subwords()
    if target is None:
        target = load(model).translate([text], max_length=max_length)[0].text
    source, output_tokens = source_side.encode([text])[0], target_side.encode([target])[0]
    if len(source) > MAX_TOKENS:
        raise InvalidInput(
            f"the text has {len(source):,} tokens and a plot shows at most {MAX_TOKENS}; shorten it"
        )
    weights = token_attention(saved.model, [source], output_tokens).tolist()
    if len(weights[0]) != len(source) + 1:
        raise InvalidInput(f"{model} was trained without attention")
    plots.attention(
        weights,
        source_side.pieces([*source, END]),
        target_side.pieces([*output_tokens, END]),
        output,
        title=f"Attention of {model}",
    )
    print(f"{target}\n{output}")


@app.command(cls=Command)
def loss(
    run: Annotated[Path, typer.Argument(help="Folder that `npad train` wrote.")],
    output: Annotated[
        Path | None, option("File of the plot. [RUN/loss.png]", "--output", "-o")
    ] = None,
) -> None:
    """Plot perplexity against updates.

    Example:

        npad plot loss runs/en-cs
    """
    path = output or run / "loss.png"
    records = jsonl.read(run / "log.jsonl")
    if not records:
        raise InvalidInput(f"{run} has no training log (log.jsonl)")
    plots.losses(records, path, loss_title(run))
    print(path)


def loss_title(folder: Path) -> str:
    """Return the title of a run's loss: its name, and what it was trained on if that is known."""
    title = f"Training of {folder.resolve().name}"
    try:
        data = training.TrainingPlan.load(folder).data
    except NpadError:
        return title
    return f"{title} on {Path(data if isinstance(data, str) else data.train[0]).name}"
