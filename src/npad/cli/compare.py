"""npad compare: every decoder side by side."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from npad.cli.decoder_options import compares
from npad.cli.options import (
    DEFAULT_MODEL,
    OUTPUT,
    AsText,
    Device,
    ModelName,
    WithTime,
    option,
)
from npad.cli.terminal import bar, console, is_terminal, plain_table
from npad.engine.cost import ModelCalls, count_calls
from npad.engine.devices import device_named
from npad.errors import InvalidInput
from npad.evaluate.bootstrap import Difference
from npad.evaluate.report import NLL, Report, compare, with_times
from npad.metrics.registry import METRICS, metric_names
from npad.pipelines.loading import load_as
from npad.pipelines.outputs import Translation
from npad.pipelines.translation import Translator
from npad.pipelines.writers import as_record
from npad.search.defaults import Defaults
from npad.search.exact import Exact
from npad.search.request import Decoding
from npad.selectors import cut_competes
from npad.text.files import Lines
from npad.validation import counted

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
{length}calls        of the model per sentence: rows (chains, beam slots) through a step;
             with a plus, those that re-score what noisy chains found
"""
LENGTH = "length       words of the outputs over words of the references\n"

# Fewer chains and samples than the decoders' own defaults, since every decoder runs while the user
# waits; and a larger η, so that its row shows what the penalty does.
QUICK = {"chains": 10, "samples": 10, "eta": 0.1}


@compares(**QUICK)
def command(
    text: Annotated[
        list[str] | None,
        typer.Argument(
            help="Texts to show side by side; or a file of lines to measure. [stdin]",
            metavar="[TEXT|FILE]…",
        ),
    ] = None,
    model: ModelName = DEFAULT_MODEL,
    exact: Annotated[bool, option("Also run exact search; for small models.", "--exact")] = False,
    device: Device = "auto",
    source: Annotated[
        Path | None, option("A file of lines to measure, whatever its name.", "--input", "-i")
    ] = None,
    reference: Annotated[
        str | None, option("Reference translations, line by line.", "--reference", "-r")
    ] = None,
    are_texts: AsText = False,
    metric: Annotated[
        list[str] | None,
        option(
            f"For a file: {', '.join(metric_names())}; repeat it for several. [bleu]",
            names=metric_names(),
        ),
    ] = None,
    with_time: WithTime = False,
    as_json: Annotated[
        bool, option("Print one JSON object per decoder.", "--json", panel=OUTPUT)
    ] = False,
    *,
    decodings: dict[str, Decoding],
) -> None:
    """Translate with every decoder, side by side.

    The lines of a file are measured instead, with intervals of a paired bootstrap: log-probability
    and cost, and quality with --reference. An argument is a file if it names one, as in
    `npad translate`.

    Examples:

        npad compare "How do I get to the station?"

        npad compare --model toy --exact "ich verstehe nur bahnhof"

        npad compare --model runs/en-cs --chains 50 "A man is riding a horse."

        npad compare test.en --reference test.de -d greedy -d "beam(width=10)" -d npad
    """
    inputs = _inputs(text, source, are_texts)
    if exact:
        decodings |= {Exact().title: replace(next(iter(decodings.values())), decoder=Exact())}
    if reference is not None or any(lines.is_file for lines in inputs):
        _measure(inputs, reference, model, device, decodings, metric, as_json, are_texts, with_time)
        return
    if with_time:
        raise InvalidInput("--time is measured on the lines of a file: give one")
    if metric is not None:
        raise InvalidInput("--metric needs a file of lines and --reference")
    translator, out = load_as(Translator, model, device_named(device, "--device")), console()
    for number, sentence in enumerate(chain.from_iterable(inputs)):
        if not sentence.strip():
            raise InvalidInput("there is nothing to compare: the text is blank")
        rows = dict(_translated(translator, sentence, decodings))
        if as_json:
            for name, (best, calls) in rows.items():
                record = {"strategy": name, **as_record(number, sentence, best)}
                record |= {"calls": calls.search, "rescored": calls.rescoring}
                print(json.dumps(record, ensure_ascii=False))
        else:
            out.print(_table(translator, sentence, rows), "")
    if not as_json:
        competes = _cut_competes(translator)
        order = "by log p alone" if competes else "finished outputs first, then log p"
        out.print(LEGEND.format(order=order))


def _inputs(text: list[str] | None, source: Path | None, are_texts: bool) -> list[Lines]:
    """Return the texts, or the one file to measure."""
    if text and source is not None:
        raise InvalidInput("give texts or a file as arguments, or a file with --input, not both")
    inputs = [Lines.of(argument, are_texts) for argument in text or ()]
    files = [str(lines) for lines in inputs if lines.is_file]
    if files and len(inputs) > 1:
        way_out = "; for references: --reference FILE" if len(files) == 2 else ""
        raise InvalidInput(f"give texts or one file, not {files[0]} and others{way_out}")
    if not inputs and source is None and is_terminal("-"):
        raise InvalidInput("there is nothing to compare: give texts, or a file of lines")
    return inputs or [Lines(str(source or "-"))]


def _measure(
    inputs: Sequence[Lines],
    reference: str | None,
    model: str,
    device: str,
    decodings: Mapping[str, Decoding],
    metrics: list[str] | None,
    as_json: bool,
    are_texts: bool,
    with_time: bool,
) -> None:
    """Measure the decoders on lines, and print a table or JSON."""
    sources = list(chain.from_iterable(inputs))
    references = None
    if reference is not None:
        references = list(Lines.of(reference, are_texts))
        metrics = metrics or ["bleu"]
    translator = load_as(Translator, model, device_named(device, "--device"))
    with bar("comparing", len(sources)) as progress:
        reports = compare(translator, sources, references, decodings, metrics, progress)
    if with_time:
        with bar("timing") as progress:
            step = partial(progress, "timing")
            reports = with_times(translator, sources, decodings, reports, step)
    if as_json:
        for name, report in reports.items():
            record = {"strategy": name, **report.to_json()}
            record["calls_per_sentence"] = report.calls / report.size
            print(json.dumps(record, ensure_ascii=False))
        return
    name = Path(inputs[0].argument).name if inputs[0].is_file else "texts"
    title = f"{name}, {counted(len(sources), 'sentence')}, model {model}"
    console().print(comparison_table(reports, title, metrics or []), "")
    if with_time:
        console().print(time_table(reports), "")
    console().print(legend(metrics or [], references is not None), end="")


def _translated(
    translator: Translator, text: str, decodings: Mapping[str, Decoding]
) -> Iterator[tuple[str, tuple[Translation, ModelCalls]]]:
    """Yield each strategy's output and model calls."""
    for name, decoding in decodings.items():
        with count_calls() as calls:
            (best,) = translator.translate(
                [text],
                decoding.decoder,
                decoding.max_length,
                constraint=decoding.constraint,
            )
        yield name, (best, calls)


def _table(
    translator: Translator, text: str, rows: Mapping[str, tuple[Translation, ModelCalls]]
) -> Table:
    """Return a table of each strategy's output, its log-probability and its cost."""
    table = Table(title=text, title_justify="left", title_style="bold")
    table.add_column("strategy", min_width=17)
    table.add_column("output", min_width=25)
    for name in ("log p", "calls", "re-scored"):
        table.add_column(name, justify="right", min_width=6)
    competes = _cut_competes(translator)

    def rank(best: Translation, tolerance: float = 0.0) -> tuple[bool, bool, float]:
        own = best.hypothesis
        return own.met, competes or own.finished, best.log_prob + tolerance

    top = max(rank(best) for best, _ in rows.values())
    for name, (best, calls) in rows.items():
        name += ", proven" if best.hypothesis.proven else ""
        name += "" if best.hypothesis.finished else ", cut"
        name += "" if best.hypothesis.met else ", lacks a phrase"
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


def legend(metrics: Sequence[str], has_references: bool = True) -> str:
    """Return what the columns mean."""
    lines = ["NLL          mean -log p under the clean model; lower is better\n"]
    for name in metrics:
        metric = METRICS[name]
        about = "sacrebleu's" if name == "bleu" else metric.description
        lines.append(f"{metric.title:12} {about}; {metric.direction}\n")
    return "".join([*lines, SET_LEGEND.format(length=LENGTH if has_references else "")])


def comparison_table(
    reports: Mapping[str, Report], title: str, metrics: Sequence[str] = ("bleu",)
) -> Table:
    """Return the table of evaluated decoders; the others are compared with the first."""
    first = next(iter(reports))
    titles = {NLL: "NLL"} | {name: METRICS[name].title for name in metrics}
    against = [f"{column} against\n{first:.14}" for column in titles.values()]
    has_ratio = any(report.length_ratio is not None for report in reports.values())
    last = ("length", "calls") if has_ratio else ("calls",)
    differences = against if len(reports) > 1 else ()
    table = plain_table(title, ("strategy", *titles.values(), *differences, *last))
    table.columns[0].min_width = 10
    for name, report in reports.items():
        calls = f"{report.calls / report.size:,.0f}"
        calls += f"\n+{report.rescored / report.size:,.0f}" if report.rescored else ""
        gains = [_gain(report.gains.get(key)) for key in titles] if len(reports) > 1 else []
        name += "" if report.finished == 1 else f"\n{1 - report.finished:.1%} cut"
        scores = []
        for key, digits in {key: 2 if key == NLL else 1 for key in titles}.items():
            score = report.scores[key]
            scores.append(f"{score.value:.2f}\n[{score.low:.{digits}f},{score.high:.{digits}f}]")
        ratio = "–" if report.length_ratio is None else f"{report.length_ratio:.3f}"
        table.add_row(name, *scores, *gains, *([ratio] if has_ratio else []), calls)
    return table


def time_table(reports: Mapping[str, Report]) -> Table:
    """Return the table of times: medians, and in brackets the fastest and the slowest round."""
    alone, many = next(iter(reports.values())).times
    title = f"Time on {alone.machine}; rounds in turn: {len(alone.seconds)}"
    together = f"batches of {many.batch}: sentences per second"
    table = plain_table(title, ("strategy", "one sentence alone", together), padding=(0, 1))
    for name, report in reports.items():
        table.add_row(name, *report.in_words())
    return table


def _gain(gain: Difference | None) -> str:
    if gain is None:
        return "–"
    sure = gain.low > 0 or gain.high < 0
    return f"{gain.value:+.2f}{'*' if sure else ''}\n[{gain.low:+.2f},{gain.high:+.2f}]"
