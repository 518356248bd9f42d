"""Decode the sets of the study by every decoder, and store what was found.

python -m studies.confidence.decoding FILE.jsonl.gz --data tatoeba-en-de --model en-de
python -m studies.confidence.decoding FILE.jsonl.gz --data multi30k-en-cs --model run
python -m studies.confidence.decoding FILE.jsonl.gz --data en-pt --model firefox-en-pt

The file's values are the distinct candidates of every sentence, and its model calls. A run that is
stopped continues where it was.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch

import npad
from npad import NPAD, Beam, Greedy, Sampling, Translator
from npad.engine.cost import count_calls
from npad.noise.random import stable_hash
from npad.reproduce.record import Record
from npad.search.decoder import Decoder
from npad.search.defaults import Defaults
from npad.search.observing import observed_by
from npad.serve.decoding import CallCounter
from npad.text.files import read_lines
from studies.hypotheses import candidates

ROWS = 20  # of the decoders whose candidates are compared
WIDTHS = (5, 10, ROWS)
LIST = f"beam {ROWS}, whole list"
MAX_ROWS = 512  # at a time
VALIDATION = 1000  # lines of a validation set; the first ones of a test set that has none beside it
MEDICAL = 500  # lines of TICO-19, which are long


class Part(NamedTuple):
    """Sentences of a task: `valid`, on which choices are made, or `test`."""

    task: str
    name: str
    sources: list[str]
    references: list[str]


def parts(data: Path) -> Iterator[Part]:
    """Yield the sets of a folder: tatoeba-en-de, multi30k-en-cs, or the two domains of en-pt."""
    if (data / "valid.en.xz").exists():
        target = data.name.rpartition("-")[2]
        task, test = f"en-{target}", next(data.glob("test*.en.xz")).name.partition(".")[0]
        valid = _pairs(data, "valid", target)
        yield Part(task, "valid", *(lines[:VALIDATION] for lines in valid))
        yield Part(task, "test", *_pairs(data, test, target))
        return
    tatoeba = _pairs(data, "tatoeba", "pt")
    yield Part("en-pt", "valid", *(lines[:VALIDATION] for lines in tatoeba))
    yield Part("en-pt", "test", *(lines[VALIDATION:] for lines in tatoeba))
    yield Part(
        "en-pt medical", "test", *(lines[:MEDICAL] for lines in _pairs(data, "tico19", "pt"))
    )


def _pairs(data: Path, name: str, target: str) -> tuple[list[str], list[str]]:
    sources, references = (list(read_lines(data / f"{name}.{code}.xz")) for code in ("en", target))
    return sources, references


def decoders(model: Any) -> dict[str, Decoder]:
    """Return the decoders of the study by name.

    A beam is done when its best hypothesis is certain; `LIST` goes on until it has a whole list.
    """
    beams = {f"beam {width}": Beam(width) for width in WIDTHS}
    chains = NPAD(**NPAD.defaults_on(Defaults.of(model)) | {"chains": ROWS})
    listed = {LIST: Beam(ROWS, nbest=ROWS), "samples": Sampling(ROWS), "npad": chains}
    return {"greedy": Greedy(), **beams, **listed}


def decoded(translator: Translator, part: Part, decoder: Decoder) -> dict[str, Any]:
    """Return the candidates of every sentence, and the model calls of its search."""
    counter = CallCounter()
    with observed_by(counter), count_calls() as counted:
        outputs = list(translator.stream(part.sources, decoder, max_rows=MAX_ROWS))
    copies = Counter(part.sources)
    found = [[o.hypothesis for o in (output, *output.alternatives)] for output in outputs]
    return {
        "calls": [counter.calls[stable_hash(text)] // copies[text] for text in part.sources],
        "rescored": counted.rescoring,
        "references": part.references,
        "candidates": [candidates(hypotheses, translator.detokenise) for hypotheses in found],
    }


def main() -> None:
    """Parse the command line and decode what the file lacks."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    record, translator = Record(arguments.file), npad.load(arguments.model, arguments.device)
    for part in parts(arguments.data):
        for name, decoder in decoders(translator.model).items():
            key = (part.task, part.name, name)
            value = record.row(key, lambda p=part, d=decoder: decoded(translator, p, d))  # type: ignore[misc]
            print(
                *key, f"{sum(value['calls']):,} calls, {value['rescored']:,} re-scored", flush=True
            )


if __name__ == "__main__":
    main()
