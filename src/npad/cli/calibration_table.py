"""What `npad calibrate` prints: the frontier, the command line, and what it beats."""

from __future__ import annotations

from rich.box import SIMPLE_HEAD
from rich.table import Table

from npad.calibrate.report import (
    LEGEND,
    LEVEL,
    Data,
    by_name,
    header,
    method,
    summary,
    table_rows,
    verdict,
)
from npad.cli.terminal import console


def print_calibration(data: Data) -> None:
    """Print a calibration."""
    out = console()
    out.print("\n".join(summary(data)), "", sep="\n")
    out.print(_table(data), "", sep="\n")
    out.print(LEGEND.format(level=LEVEL))
    out.print(f"Recommended: {data['winner']}")
    out.print(f"  {data['command']['best']}", soft_wrap=True)
    for line in [*verdict(data), method()]:
        out.print(line)
    if data["cheaper"] is not None:
        held = by_name(data)[data["cheaper"]]["held_out"]
        cost = f"{held['cost']:.1f} {data['unit']} a sentence"
        out.print(f"\nThe cheapest that it beats on neither part: {data['cheaper']}, {cost}")
        out.print(f"  {data['command']['cheaper']}", soft_wrap=True)


def _table(data: Data) -> Table:
    table = Table(
        title=f"{data['model']}, {data['sentences']['search']:,} and "
        f"{data['sentences']['held_out']:,} sentences",
        title_justify="left",
        title_style="bold",
        box=SIMPLE_HEAD,
        pad_edge=False,
        show_edge=False,
        padding=0,
    )
    for i, name in enumerate(header(data)):
        table.add_column(
            name.replace(": ", "\n"), justify="right" if i else "left", overflow="fold"
        )
    for cells in table_rows(data):
        table.add_row(*cells, style="bold" if "recommended" in cells else "")
    return table
