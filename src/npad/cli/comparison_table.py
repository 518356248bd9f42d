"""The table of `npad compare` on a test set: every decoder with intervals, beside the first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.box import SIMPLE_HEAD
from rich.table import Table

from npad.evaluate.bootstrap import Difference
from npad.evaluate.report import NLL, Report
from npad.metrics.registry import METRICS

LEGEND = """\
[low,high]   95 % interval: paired bootstrap over the sentences, 1,000 test sets
against      difference to the first row; * where its interval excludes 0
length       words of the outputs over words of the references
calls        of the model, a sentence: rows (chains, beam slots) through one step;
             with a plus, those that re-score what noisy chains found
"""


def legend(metrics: Sequence[str]) -> str:
    """Return what the columns mean."""
    lines = ["NLL          mean -log p under the clean model; lower is better\n"]
    for name in metrics:
        metric = METRICS[name]
        about = "sacrebleu's" if name == "bleu" else metric.description
        lines.append(f"{metric.title:12} {about}; {metric.direction}\n")
    return "".join([*lines, LEGEND])


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
