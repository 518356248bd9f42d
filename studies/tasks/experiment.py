"""Captions and speech: decode test sets with a trained model, and report on what was decoded.

python -m studies.tasks decode caption --model RUN --data DIR --out FILE.jsonl.gz
python -m studies.tasks decode speech --model RUN --data DIR --out FILE.jsonl.gz
python -m studies.tasks report FILE.jsonl.gz FOLDER [--descriptions PICTURES.txt]

`decode` runs the report to learn what it asks for, and writes the hypotheses; it needs torch,
tokenizers, NumPy and Pillow only. If it is stopped, the same command continues. `report` measures
them and writes FOLDER/README.md with its plots, setup.json and results.jsonl.
"""

from __future__ import annotations

import argparse
import math
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

import torch

from npad.engine.devices import device_named
from npad.errors import InvalidInput, NpadError
from npad.model import name_of
from npad.pipelines.captioning import MAX_CAPTION
from npad.reproduce import report
from npad.reproduce.record import Record
from npad.reproduce.report import Setup, about_model, machine
from npad.search.greedy import Greedy
from npad.search.request import Decoding
from npad.storage import checkpoint
from npad.text.files import read_lines
from studies.beyond.sections import selectable
from studies.hypotheses import Deadline, OutOfTime
from studies.tasks.decoded_bench import DecodedBench, LiveSet
from studies.tasks.sections import OUTLINES
from studies.tasks.sets import caption_sets, speech_sets

TITLES = {
    "caption": "Flickr8k, captions of photographs",
    "speech": "Free Spoken Digit Dataset, strings of digits",
}
MAX_LENGTH = {"caption": MAX_CAPTION, "speech": 40}  # tokens; the longest captions have about 35
SIZES = {"caption": (1000, 1000), "speech": (100, 500)}  # validation (each level of noise), test
EXACT = {"caption": 100, "speech": 500}  # sources to search exactly
BUDGET = 500  # model calls of exact search for each
MAX_ROWS = 16384


def decode(options: argparse.Namespace) -> None:
    """Decode what the report asks for."""
    device = device_named(options.device, "--device")
    valid, test = SIZES[options.task]
    sizes = options.valid or valid, options.test or test
    if options.task == "caption":
        live = caption_sets(options.model, options.blind, options.data, sizes, device)
    else:
        live = speech_sets(options.model, options.data, sizes, device)
    outline, begin = OUTLINES[options.task], time.perf_counter()
    setup = _continued(options.out, _setup(options, live, device))

    def note(text: str) -> None:
        print(f"{(time.perf_counter() - begin) / 60:5.2f} min  {text}", flush=True)

    try:
        with tempfile.TemporaryDirectory() as folder:
            bench = DecodedBench(
                Path(folder),
                options.out,
                list(setup.sets),
                outline.measures,
                setup.seeds,
                Decoding(Greedy(), setup.max_length, options.max_rows),
                live,
                Deadline(options.minutes),
                note,
            )
            if not setup.brief:
                for decoder in selectable(bench).values():
                    bench.keep(decoder)
            report.markdown_of(bench, setup, outline)
    except OutOfTime:
        print("stopped: the same command continues")
    else:
        print("complete")


def _setup(options: argparse.Namespace, live: dict[str, LiveSet], device: torch.device) -> Setup:
    controls = tuple(name for name in live if name.startswith("test, "))
    sets = {name: len(s.references) for name, s in live.items() if name not in controls}
    smallest = min(size for name, size in sets.items() if name != "valid")
    folder = checkpoint.resolve(options.model)
    about = about_model(checkpoint.read_config(folder))
    about["machine"] = machine(device, f"{options.max_rows:,} rows at a time")
    return Setup(
        title=TITLES[options.task],
        command=f"python -m studies.tasks decode {options.task}",
        model=name_of(next(iter(live.values())).model),
        sets=sets,
        seeds=options.seeds,
        max_length=MAX_LENGTH[options.task],
        brief=options.brief,
        exact=(min(options.exact or EXACT[options.task], smallest), options.budget),
        about=about,
        task=options.task,
        controls=controls,
    )


def _continued(file: Path, setup: Setup) -> Setup:
    """Add the setup to the file unless it is the last there; the first says where it began."""
    record = Record(file)
    known = _setups(record)
    setup = replace(setup, about=known[0].about) if known else setup
    if known[-1:] != [setup]:
        record.row(("about", len(known)), partial(asdict, setup))
    return setup


def _setups(record: Record) -> list[Setup]:
    return [Setup.of(value) for key, value in record.results.items() if key[0] == "about"]


def write_report(file: Path, folder: Path, descriptions: Path | None = None) -> None:
    """Measure the hypotheses of a file, and write the report.

    Args:
        file: of hypotheses.
        folder: of the report.
        descriptions: a line for each picture that the report shows, instead of its references;
            those of an earlier report in the folder, unless given.

    Raises:
        InvalidInput: the file has no hypotheses.
        NotMeasured: some are missing.
    """
    setups = _setups(Record(file))
    if not setups:
        raise InvalidInput(f"{file} holds no hypotheses; make it with `decode`")
    setup = setups[-1]
    if descriptions is not None:
        setup = replace(setup, descriptions=tuple(read_lines(descriptions)))
    elif (folder / "setup.json").exists():
        setup = replace(setup, descriptions=Setup.load(folder).descriptions)
    outline = OUTLINES[setup.task]
    bench = DecodedBench(folder, file, list(setup.sets), outline.measures, setup.seeds)
    report.write(bench, setup, outline)
    setup.save(folder)


def main(arguments: Sequence[str] | None = None) -> None:
    """Decode, or report; a mistake prints one line."""
    parser = argparse.ArgumentParser(
        "python -m studies.tasks", description=(__doc__ or "").splitlines()[0]
    )
    commands = parser.add_subparsers(required=True)
    decoding = commands.add_parser("decode", help="write hypotheses")
    decoding.set_defaults(command=decode)
    decoding.add_argument("task", choices=("caption", "speech"))
    decoding.add_argument("--model", type=Path, required=True, help="folder of the model")
    decoding.add_argument("--blind", type=Path, help="of one trained on shuffled pictures")
    decoding.add_argument("--data", type=Path, required=True, help="folder of the corpus")
    decoding.add_argument("--out", type=Path, required=True, help="FILE.jsonl.gz")
    decoding.add_argument("--device", default="auto")
    decoding.add_argument("--valid", type=int, help="validation pictures, or strings")
    decoding.add_argument("--test", type=int, help="test pictures, or strings")
    decoding.add_argument("--seeds", type=int, default=3)
    decoding.add_argument("--exact", type=int, help="sources to search exactly")
    decoding.add_argument("--budget", type=int, default=BUDGET, help="calls of exact search")
    decoding.add_argument("--brief", action="store_true", help="the paper's tables only")
    decoding.add_argument("--max-rows", type=int, default=MAX_ROWS)
    decoding.add_argument("--minutes", type=float, default=math.inf, help="begin nothing after")
    reporting = commands.add_parser("report", help="measure hypotheses, and write the report")
    reporting.set_defaults(
        command=lambda options: write_report(options.file, options.folder, options.descriptions)
    )
    reporting.add_argument("file", type=Path, help="FILE.jsonl.gz")
    reporting.add_argument("folder", type=Path)
    reporting.add_argument(
        "--descriptions", type=Path, help="a line for each picture shown, instead of references"
    )
    options = parser.parse_args(arguments)
    try:
        options.command(options)
    except NpadError as error:
        raise SystemExit(f"error: {error}") from error


if __name__ == "__main__":
    main()
