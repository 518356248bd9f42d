"""npad compare: every decoder side by side."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table

from npad.cli.decoder_options import compares
from npad.cli.options import DEFAULT_MODEL, OUTPUT, Device, ModelName
from npad.cli.terminal import bar, console
from npad.engine.cost import count_calls
from npad.engine.devices import device_named
from npad.errors import InvalidInput
from npad.evaluate.bootstrap import Difference
from npad.evaluate.report import NLL, Report, compare
from npad.metrics.registry import METRICS, metric_names
from npad.pipelines.loading import load_as
from npad.pipelines.outputs import Translation
from npad.pipelines.translation import Translator
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
SET_LEGEND = """\
[low,high]   95 % interval: paired bootstrap over the sentences, 1,000 test sets
against      difference to the first row; * where its interval excludes 0
length       words of the outputs over words of the references
calls        of the model, a sentence: rows (chains, beam slots) through one step;
             with a plus, those that re-score what noisy chains found
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
            help=f"On a test set: {', '.join(metric_names())}; several times for several. [bleu]",
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
    decodings: dict[str, Decoding],
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
    if exact:
        decodings |= {Exact().title: replace(next(iter(decodings.values())), decoder=Exact())}
    if source is not None and reference is not None:
        pairs = read_pairs(source, reference)
        translator = load_as(Translator, model, device_named(device, "--device"))
        with bar("comparing", len(pairs[0])) as progress:
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
        out.print(_table(translator, sentence, decodings), "")
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


def _table(translator: Translator, text: str, decodings: Mapping[str, Decoding]) -> Table:
    """Return a table of each strategy's output, its log-probability and its cost."""
    table = Table(title=text, title_justify="left", title_style="bold")
    table.add_column("strategy", min_width=17)
    table.add_column("output", min_width=25)
    for name in ("log p", "calls", "re-scored"):
        table.add_column(name, justify="right", min_width=6)
    rows = {}
    for name, decoding in decodings.items():
        with count_calls() as calls:
            best = translator.translate([text], decoding.decoder, decoding.max_length)[0]
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


def legend(metrics: Sequence[str]) -> str:
    """Return what the columns mean."""
    lines = ["NLL          mean -log p under the clean model; lower is better\n"]
    for name in metrics:
        metric = METRICS[name]
        about = "sacrebleu's" if name == "bleu" else metric.description
        lines.append(f"{metric.title:12} {about}; {metric.direction}\n")
    return "".join([*lines, SET_LEGEND])


def comparison_table(
    reports: Mapping[str, Report], title: str, metrics: Sequence[str] = ("bleu",)
) -> Table:
    """Return the table of evaluated decoders; the others are compared with the first."""
    first = next(iter(reports))
    table = Table(
        title=title,
        title_justify="left",
        title_style="bold",
        box=SIMPLE_HEAD,
        pad_edge=False,
        show_edge=False,
        padding=0,  # the box has a space between columns
    )
    table.add_column("strategy", min_width=10, overflow="fold")
    titles = {NLL: "NLL"} | {name: METRICS[name].title for name in metrics}
    against = [f"{column} against\n{first:.14}" for column in titles.values()]
    for name in (*titles.values(), *(against if len(reports) > 1 else ()), "length", "calls"):
        table.add_column(name, justify="right", overflow="fold")
    for name, report in reports.items():
        calls = f"{report.calls / report.size:,.0f}"
        calls += f"\n+{report.rescored / report.size:,.0f}" if report.rescored else ""
        gains = [_gain(report.gains.get(key)) for key in titles] if len(reports) > 1 else []
        name += "" if report.finished == 1 else f"\n{1 - report.finished:.1%} cut"
        scores = [_score(report.scores[key], 2 if key == NLL else 1) for key in titles]
        ratio = "–" if report.length_ratio is None else f"{report.length_ratio:.3f}"
        table.add_row(name, *scores, *gains, ratio, calls)
    return table


def _score(score: Difference, digits: int) -> str:
    return f"{score.value:.2f}\n[{score.low:.{digits}f},{score.high:.{digits}f}]"


def _gain(gain: Difference | None) -> str:
    if gain is None:
        return "–"
    sure = gain.low > 0 or gain.high < 0
    return f"{gain.value:+.2f}{'*' if sure else ''}\n[{gain.low:+.2f},{gain.high:+.2f}]"
