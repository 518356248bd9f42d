"""The table of `npad compare` on a test set: every decoder with intervals, beside the first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from npad.evaluate.bootstrap import Difference
from npad.evaluate.comparison import Measured

LEGEND = """\
NLL          mean -log p under the clean model; lower is better
BLEU         sacrebleu's; higher is better
[low,high]   95 % interval: paired bootstrap over the sentences, 1,000 test sets
against      difference to the first row; * where its interval excludes 0
length       words of the outputs over words of the references
calls        of the model, a sentence: rows (chains, beam slots) through one step;
             with a plus, those that re-score what noisy chains found
"""


def comparison_table(measured: Mapping[str, Measured], title: str) -> Table:
    """Return the table of measured decoders; the others are compared with the first."""
    first = next(iter(measured))
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
    against = ["NLL against", "BLEU against"] if len(measured) > 1 else []
    for name in (
        "NLL",
        "BLEU",
        *(f"{column}\n{first:.14}" for column in against),
        "length",
        "calls",
    ):
        table.add_column(name, justify="right", overflow="fold")
    for name, row in measured.items():
        count, report = row.report.sentences, row.report
        calls = f"{report.calls / count:,.0f}"
        calls += f"\n+{report.rescored / count:,.0f}" if report.rescored else ""
        gains = [_gain(row.nll_gain), _gain(row.bleu_gain)] if against else []
        name += "" if report.finished == 1 else f"\n{1 - report.finished:.1%} cut"
        table.add_row(
            name,
            f"{report.nll:.2f}\n[{row.nll.low:.2f},{row.nll.high:.2f}]",
            f"{report.bleu:.2f}\n[{row.bleu.low:.1f},{row.bleu.high:.1f}]",
            *gains,
            f"{report.length_ratio:.3f}",
            calls,
        )
    return table


def as_record(name: str, row: Measured) -> dict[str, Any]:
    """Return one decoder's figures for JSON."""
    record = {"strategy": name, **asdict(row.report)}
    values = {"nll": row.nll, "bleu": row.bleu}
    record |= {f"{key}_interval": [value.low, value.high] for key, value in values.items()}
    record["calls_per_sentence"] = row.report.calls / row.report.sentences
    if row.nll_gain is not None and row.bleu_gain is not None:
        record |= {"nll_gain": asdict(row.nll_gain), "bleu_gain": asdict(row.bleu_gain)}
    return record


def _gain(gain: Difference | None) -> str:
    if gain is None:
        return "–"
    sure = gain.low > 0 or gain.high < 0
    return f"{gain.value:+.2f}{'*' if sure else ''}\n[{gain.low:+.2f},{gain.high:+.2f}]"
