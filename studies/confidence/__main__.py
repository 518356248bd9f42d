r"""Measure signals, votes and escalation, and render the report.

python -m studies.confidence FOLDER --speech docs/results/whisper/hypotheses.jsonl.xz \
    --decoded de.jsonl.gz pt.jsonl.gz

The decoded files are those of `studies.confidence.decoding`. Without files, the report is
rendered again from FOLDER/figures.jsonl.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from npad.reproduce.record import Record
from npad.storage.atomic import write_atomic
from studies.confidence.experiment import measure
from studies.confidence.report import draw, render
from studies.confidence.tasks import decoded_tasks, speech_task


def main() -> None:
    """Parse the command line, measure what is missing, and render."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--speech", type=Path)
    parser.add_argument("--decoded", type=Path, nargs="+", default=[])
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    record = Record(arguments.folder / "figures.jsonl")
    tasks = [] if arguments.speech is None else [speech_task(arguments.speech)]
    measure(record, [*tasks, *decoded_tasks(arguments.decoded)], print)
    draw(record, arguments.folder)
    write_atomic(arguments.folder / "README.md", render(record))


if __name__ == "__main__":
    main()
