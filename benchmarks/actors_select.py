"""Validation BLEU of greedy search with each actor of benchmarks/actors.py: which would one choose?

python benchmarks/actors_select.py OUT/actors-*.tar --data DIR

DIR holds tatoeba-en-de/valid.{en,de}.xz. The training run chooses by log-probability, where
sacrebleu is not installed; this is the criterion that `npad train-actor` has by default.
"""

from __future__ import annotations

import argparse
import tarfile
import tempfile
from pathlib import Path

from npad.models.cgru.fast import prepared
from npad.models.steered import Steered
from npad.pipelines.names import SHIPPED
from npad.storage import checkpoint
from npad.storage.actors import load_actor
from npad.text.files import read_lines
from npad.text.subwords import Detokeniser
from npad.training.actors import bleu_of
from npad.training.validation import GreedySearch


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("actors", type=Path, nargs="+")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()
    saved = checkpoint.load(SHIPPED["en-de"], arguments.device)
    source, target = saved.subwords
    texts, references = (
        list(read_lines(arguments.data / f"tatoeba-en-de/valid.{side}.xz")) for side in ("en", "de")
    )
    measure = bleu_of(references, Detokeniser(target))
    validation = GreedySearch(source.encode(texts), measure, max_length=100)
    model = prepared(saved.model)
    print(f"{'greedy':24} {_line(validation(model))}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        for path in arguments.actors:
            with tarfile.open(path) as tar:
                tar.extractall(folder, filter="data")
        for place in sorted(Path(folder).iterdir()):
            actor = load_actor(place, saved.about["sha256"][checkpoint.WEIGHTS], arguments.device)
            assert actor is not None
            measures = validation(Steered(model, actor))
            print(f"{place.name:24} {_line(measures)}", flush=True)


def _line(measures: dict[str, float]) -> str:
    return f"BLEU {measures['criterion']:.2f}  log p {measures['log_prob']:.3f}"


if __name__ == "__main__":
    main()
