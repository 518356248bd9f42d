"""npad compare: every decoder side by side."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.table import Table

from npad.cli.decoder_options import compares
from npad.cli.options import DEFAULT_MODEL, Device, MaxLength, ModelName
from npad.cli.terminal import console
from npad.engine.cost import count_calls
from npad.engine.devices import device_named
from npad.errors import InvalidInput
from npad.pipelines.loading import load
from npad.pipelines.translation import Translator
from npad.search.decoder import Decoder
from npad.search.exact import Exact

LEGEND = """\
log p      of the output under the clean model, end token included; best in green
calls      rows through one step of the model
re-scored  calls of the clean model that scores what noisy chains found
"""


@compares(chains=10, samples=10, eta=0.1)
def command(
    text: Annotated[list[str], typer.Argument(help="Texts to translate.")],
    model: ModelName = DEFAULT_MODEL,
    exact: Annotated[
        bool, typer.Option("--exact", help="Also run exact search; for small models.")
    ] = False,
    device: Device = "auto",
    max_length: MaxLength = 200,
    *,
    decoders: list[Decoder],
) -> None:
    """Translate with every decoder and show the outputs side by side.

    Examples:

        npad compare "How do I get to the station?"

        npad compare --model toy --exact "ich verstehe nur bahnhof"

        npad compare --model runs/en-cs --chains 50 "A man is riding a horse."
    """
    translator, out = load(model, device_named(device, "--device")), console()
    strategies = {decoder.title: decoder for decoder in [*decoders, *([Exact()] if exact else [])]}
    for sentence in text:
        if not sentence.strip():
            raise InvalidInput("there is nothing to compare: the text is blank")
        out.print(_table(translator, sentence, strategies, max_length), "")
    out.print(LEGEND)


def _table(
    translator: Translator, text: str, strategies: dict[str, Decoder], max_length: int
) -> Table:
    """Return a table of each strategy's output, its log-probability and its cost."""
    table = Table(title=text, title_justify="left", title_style="bold")
    table.add_column("strategy", min_width=17)
    table.add_column("output", min_width=26)
    for name in ("log p", "calls", "re-scored"):
        table.add_column(name, justify="right", min_width=6)
    rows = {}
    for name, decoder in strategies.items():
        with count_calls() as calls:
            best = translator.translate([text], decoder, max_length)[0]
        rows[name] = best, calls
    top = max((best.hypothesis.finished, best.log_prob) for best, _ in rows.values())
    for name, (best, calls) in rows.items():
        name += ", proven" if best.hypothesis.proven else ""
        name += "" if best.hypothesis.finished else ", cut"
        style = "green" if (best.hypothesis.finished, best.log_prob + 1e-4) > top else ""
        table.add_row(
            name,
            best.text,
            f"{best.log_prob:.3f}",
            f"{calls.search:,}",
            f"{calls.rescoring:,}" if calls.rescoring else "–",
            style=style,
        )
    return table
