"""npad compare: every decoder side by side."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from npad.cli.comparison_table import comparison_table, legend
from npad.cli.decoder_options import compares
from npad.cli.options import DEFAULT_MODEL, OUTPUT, Device, MaxLength, MaxRows, ModelName
from npad.cli.terminal import bar, console
from npad.engine.cost import count_calls
from npad.engine.devices import device_named
from npad.errors import InvalidInput
from npad.evaluate.report import compare
from npad.metrics.registry import METRICS
from npad.pipelines.loading import load_as
from npad.pipelines.outputs import Translation
from npad.pipelines.translation import Translator
from npad.search.decoder import Decoder
from npad.search.defaults import Defaults
from npad.search.exact import Exact
from npad.search.request import Decoding
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
    metric: Annotated[
        list[str] | None,
        typer.Option(
            help=f"On a test set: {', '.join(METRICS)}; several times for several. [bleu]",
            metavar="NAME",
        ),
    ] = None,
    as_json: Annotated[
        bool,
        typer.Option(
            "--json", help="On a test set, print one JSON object a decoder.", rich_help_panel=OUTPUT
        ),
    ] = False,
    *,
    decoders: dict[str, Decoder],
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
    strategies = {**decoders, Exact().title: Exact()} if exact else decoders
    if source is not None and reference is not None:
        pairs = read_pairs(source, reference)
        translator = load_as(Translator, model, device_named(device, "--device"))
        with bar("comparing", len(pairs[0])) as progress:
            decodings = {
                name: Decoding(chosen, max_length, max_rows) for name, chosen in strategies.items()
            }
            reports = compare(translator, *pairs, decodings, metric, progress)
        if as_json:
            for name, report in reports.items():
                record = {"strategy": name, **report.to_json()}
                record["calls_per_sentence"] = report.calls / report.size
                print(json.dumps(record, ensure_ascii=False))
            return
        title = f"{source.name}, {len(pairs[0]):,} sentences, model {model}"
        shown = metric or ["bleu"]
        console().print(comparison_table(reports, title, shown), "")
        console().print(legend(shown), end="")
        return
    translator, out = load_as(Translator, model, device_named(device, "--device")), console()
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
