"""npad compare: every decoder side by side."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from npad.cli.comparison_table import LEGEND as SET_LEGEND
from npad.cli.comparison_table import as_record, comparison_table
from npad.cli.decoder_fields import PANEL
from npad.cli.decoder_options import compares, make_decoder
from npad.cli.options import DEFAULT_MODEL, OUTPUT, Device, MaxLength, MaxRows, ModelName
from npad.cli.terminal import bar, console
from npad.engine.cost import count_calls
from npad.engine.devices import device_named
from npad.errors import InvalidInput
from npad.evaluate.comparison import compare
from npad.pipelines.loading import load
from npad.pipelines.outputs import Translation
from npad.pipelines.translation import Translator
from npad.search.decoder import Decoder
from npad.search.defaults import Defaults
from npad.search.exact import Exact
from npad.search.registry import DECODERS
from npad.selectors import cut_competes
from npad.text.files import read_pairs

TIE = 1e-4  # in float32, the same output may differ by this between two batches
LEGEND = """\
log p      of the output under the clean model, end token included
*          the best, also in green: {order}
calls      rows through one step of the model
re-scored  calls of the clean model that scores what noisy chains found
"""


# Fewer chains and samples than the decoders' own defaults, since every decoder runs while the user
# waits; and a larger η, so that its row shows what the penalty does.
QUICK = {"chains": 10, "samples": 10, "eta": 0.1}


@compares(**QUICK)
def command(
    text: Annotated[list[str] | None, typer.Argument(help="Texts to translate.")] = None,
    model: ModelName = DEFAULT_MODEL,
    exact: Annotated[
        bool, typer.Option("--exact", help="Also run exact search; for small models.")
    ] = False,
    device: Device = "auto",
    max_length: MaxLength = 200,
    max_rows: MaxRows = 1024,
    source: Annotated[
        Path | None,
        typer.Option("--input", "-i", help="A test set's sources, to measure instead of texts."),
    ] = None,
    reference: Annotated[
        Path | None,
        typer.Option("--reference", "-r", help="Their reference translations, line by line."),
    ] = None,
    decoder: Annotated[
        list[str] | None,
        typer.Option(
            "--decoder",
            "-d",
            metavar="NAME",
            help="Only this decoder, by name or as beam(width=3); several times for several. "
            "The first is what the others are compared with on a test set.",
            rich_help_panel=PANEL,
        ),
    ] = None,
    as_json: Annotated[
        bool,
        typer.Option(
            "--json", help="On a test set, print one JSON object a decoder.", rich_help_panel=OUTPUT
        ),
    ] = False,
    *,
    decoders: list[Decoder],
) -> None:
    """Translate with every decoder and show the outputs side by side.

    With --input and --reference, measure every decoder on a test set instead, with intervals of a
    paired bootstrap.

    Examples:

        npad compare "How do I get to the station?"

        npad compare --model toy --exact "ich verstehe nur bahnhof"

        npad compare --model runs/en-cs --chains 50 "A man is riding a horse."

        npad compare -i test.en --reference test.de -d greedy -d "beam(width=10)" -d npad
    """
    _ensure_one_input(text, source, reference, as_json)
    strategies = {each.title: each for each in decoders}
    if decoder:
        strategies = _chosen(decoder, decoders)
    if exact:
        strategies[Exact().title] = Exact()
    if source is not None and reference is not None:
        pairs = read_pairs(source, reference)
        translator = load(model, device_named(device, "--device"))
        with bar("comparing", len(pairs[0])) as progress:
            measured = compare(translator, *pairs, strategies, max_length, max_rows, progress)
        if as_json:
            for name, row in measured.items():
                print(json.dumps(as_record(name, row), ensure_ascii=False))
            return
        title = f"{source.name}, {len(pairs[0]):,} sentences, model {model}"
        console().print(comparison_table(measured, title), "")
        console().print(SET_LEGEND, end="")
        return
    translator, out = load(model, device_named(device, "--device")), console()
    for sentence in text or ():
        if not sentence.strip():
            raise InvalidInput("there is nothing to compare: the text is blank")
        out.print(_table(translator, sentence, strategies, max_length), "")
    order = "by log p alone" if _cut_competes(translator) else "finished outputs first, then log p"
    out.print(LEGEND.format(order=order))


def _ensure_one_input(
    text: list[str] | None, source: Path | None, reference: Path | None, as_json: bool
) -> None:
    """Require texts, or both files of a test set."""
    if text and source is not None:
        raise InvalidInput("give texts or --input, not both")
    if (source is None) != (reference is None):
        missing, given = (
            ("--input", "--reference") if source is None else ("--reference", "--input")
        )
        raise InvalidInput(f"{given} needs {missing}: a test set is sources and references")
    if not text and source is None:
        raise InvalidInput(
            "there is nothing to compare: give texts, or a test set with --input and --reference"
        )
    if as_json and source is None:
        raise InvalidInput("--json needs a test set: give --input and --reference")


def _chosen(names: list[str], decoders: list[Decoder]) -> dict[str, Decoder]:
    """Return the decoders that --decoder names; a plain name has the settings of the options.

    A decoder is called by its title, or as it was typed if another one has that title.
    """
    chosen: dict[str, Decoder] = {}
    for name in names:
        kind = DECODERS.kinds.get(name)
        named = [decoder for decoder in decoders if type(decoder) is kind]
        for decoder in named or [make_decoder(name, {})]:
            chosen[name if decoder.title in chosen else decoder.title] = decoder
    return chosen


def _table(
    translator: Translator, text: str, strategies: dict[str, Decoder], max_length: int
) -> Table:
    """Return a table of each strategy's output, its log-probability and its cost."""
    table = Table(title=text, title_justify="left", title_style="bold")
    table.add_column("strategy", min_width=17)
    table.add_column("output", min_width=25)
    for name in ("log p", "calls", "re-scored"):
        table.add_column(name, justify="right", min_width=6)
    rows = {}
    for name, decoder in strategies.items():
        with count_calls() as calls:
            best = translator.translate([text], decoder, max_length)[0]
        rows[name] = best, calls
    competes = _cut_competes(translator)

    def rank(best: Translation, tolerance: float = 0.0) -> tuple[bool, float]:
        return competes or best.hypothesis.finished, best.log_prob + tolerance

    top = max(rank(best) for best, _ in rows.values())
    for name, (best, calls) in rows.items():
        name += ", proven" if best.hypothesis.proven else ""
        name += "" if best.hypothesis.finished else ", cut"
        is_top = rank(best, TIE) > top
        table.add_row(
            name,
            best.text,
            f"{'*' if is_top else ''}{best.log_prob:.3f}",
            f"{calls.search:,}",
            f"{calls.rescoring:,}" if calls.rescoring else "–",
            style="green" if is_top else "",
        )
    return table


def _cut_competes(translator: Translator) -> bool:
    """Return whether outputs that were cut are ranked among the finished ones of this model."""
    return cut_competes(Defaults.of(translator.model).selector)
