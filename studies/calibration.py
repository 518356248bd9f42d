"""The page of a calibration, from what `npad calibrate --json` printed.

python -m studies.calibration FOLDER

writes FOLDER/README.md and FOLDER/frontier.png from FOLDER/calibration.json.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from npad.calibrate.report import (
    LEGEND,
    LEVEL,
    Data,
    cheaper,
    header,
    method,
    plot,
    summary,
    table_rows,
    verdict,
    with_cost,
)
from npad.errors import InvalidInput
from npad.reproduce.markdown import markdown_table
from npad.storage.atomic import write_atomic
from npad.storage.regular import parse_json, read_bytes

MAX_BYTES = 1 << 28


def page(data: Data) -> str:
    """Return the report as a page of Markdown."""
    parts = [
        f"# Which decoder for {data['model']}?",
        f"The best {data['metric']} for {data['budget']:g} {data['unit']} per sentence, found by",
        f"```\n{data['made_by']}\n```",
        " ".join(summary(data)),
        "![quality against cost](frontier.png)",
        markdown_table(header(data), table_rows(data)).strip(),
        "```text\n" + LEGEND.format(level=LEVEL) + "```",
        " ".join([*verdict(data), method()]),
        f"**Recommended:** {with_cost(data, data['winner'])}",
        f"```\n{data['command']['best']}\n```",
        cheaper(data),
    ]
    if data["cheaper"] is not None:
        parts.append(f"```\n{data['command']['cheaper']}\n```")
    return "\n\n".join(parts) + "\n"


def write_page(folder: Path) -> None:
    """Write README.md and frontier.png of a folder that has calibration.json."""
    data = read_record(folder / "calibration.json")
    plot(data, folder / "frontier.png")
    write_atomic(folder / "README.md", page(data))


def read_record(path: Path) -> Data:
    """Return what `npad calibrate --json` wrote.

    Raises:
        StorageError: the file cannot be read.
    """
    data: Data = parse_json(read_bytes(path, MAX_BYTES), str(path))
    return data


def main(arguments: Sequence[str]) -> None:
    """Write the report of a folder."""
    if len(arguments) != 1:
        raise InvalidInput("usage: python -m studies.calibration FOLDER")
    write_page(Path(arguments[0]))


if __name__ == "__main__":
    main(sys.argv[1:])
