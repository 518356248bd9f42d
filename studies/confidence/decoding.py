"""Decode the sets of the study by every decoder, and store what was found.

python -m studies.confidence.decoding FILE.jsonl.gz --data tatoeba-en-de --model en-de
python -m studies.confidence.decoding FILE.jsonl.gz --data multi30k-en-cs --model run
python -m studies.confidence.decoding FILE.jsonl.gz --data en-pt --model firefox-en-pt
python -m studies.confidence.decoding FILE.jsonl.gz --data flickr8k --model run

The file's values are the distinct candidates of every sentence, and its model calls. A run that is
stopped continues where it was.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

import npad
from npad import NPAD, Beam, Captioner, Greedy, Sampling
from npad.engine.cost import count_calls
from npad.engine.devices import device_named
from npad.metrics.metric import Reference
from npad.pipelines.pipeline import Piece, Pipeline
from npad.reproduce.record import Record
from npad.search.decoder import Decoder
from npad.search.defaults import Defaults
from npad.search.observing import observed_by
from npad.serve.decoding import CallCounter
from npad.text.files import read_lines
from studies.hypotheses import candidates
from studies.tasks.sets import caption_sets

ROWS = 20  # of the decoders whose candidates are compared
WIDTHS = (5, 10, ROWS)
LIST = f"beam {ROWS}, whole list"
MAX_ROWS = 512  # at a time
VALIDATION = 1000  # lines of a validation set; the first ones of a test set that has none beside it
MEDICAL = 500  # lines of TICO-19, which are long


class Part(NamedTuple):
    """Texts or pictures of a task: `valid`, on which choices are made, or `test`."""

    task: str
    name: str
    sources: Sequence[Any]
    references: Sequence[Reference]


def load(model: str, data: Path, device: str) -> tuple[Pipeline, Iterable[Part]]:
    """Return a model's pipeline, and the sets of a folder of texts or of pictures."""
    if not (data / "test.tsv.xz").exists():
        return npad.load(model, device), parts(data)
    # A frozen network's features of a picture are computed once, for all decoders.
    sizes = VALIDATION, VALIDATION
    sets = caption_sets(Path(model), None, data, sizes, device_named(device))
    found = [Part("captions", n, sets[n].sources, sets[n].references) for n in ("valid", "test")]
    test = sets["test"]
    return Captioner(test.model, test.detokenise, len(test.sources[0][0])), found


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


def decoded(pipeline: Pipeline, part: Part, decoder: Decoder) -> dict[str, Any]:
    """Return the candidates of every source, and the model calls of its search."""
    counter = CallCounter()
    with observed_by(counter), count_calls() as counted:
        outputs = list(pipeline.stream(part.sources, decoder, max_rows=MAX_ROWS))
    keys = [Piece(source).key for source in part.sources]
    copies = Counter(keys)
    found = [[o.hypothesis for o in (output, *output.alternatives)] for output in outputs]
    return {
        "calls": [counter.calls[key] // copies[key] for key in keys],
        "rescored": counted.rescoring,
        "references": part.references,
        "candidates": [candidates(hypotheses, pipeline.detokenise) for hypotheses in found],
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
    record = Record(arguments.file)
    pipeline, every = load(arguments.model, arguments.data, arguments.device)
    for part in every:
        for name, decoder in decoders(pipeline.model).items():
            key = (part.task, part.name, name)
            value = record.row(key, lambda p=part, d=decoder: decoded(pipeline, p, d))  # type: ignore[misc]
            print(
                *key, f"{sum(value['calls']):,} calls, {value['rescored']:,} re-scored", flush=True
            )


if __name__ == "__main__":
    main()
