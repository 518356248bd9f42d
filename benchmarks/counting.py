"""Seconds to translate a text with the shipped model, with model calls counted and without.

python benchmarks/counting.py TEXT [--device cuda]      English, a sentence a line

Each figure is the last of three runs, so that CUDA graphs have been captured. The script also runs
on npad 0.1, whose `Counted` turned CUDA graphs off.
"""

from __future__ import annotations

import argparse
import lzma
import time
from dataclasses import replace
from pathlib import Path

import torch

import npad
from npad import NPAD, Beam, Greedy, Noise

DECODERS = {
    "greedy": Greedy(),
    "beam 5": Beam(5),
    "NPAD-10 + greedy": NPAD(Greedy(), 10, Noise(0.3)),
    "NPAD-50 + greedy": NPAD(Greedy(), 50, Noise(0.3)),
}
RUNS = 3


def translate(translator, texts, decoder, max_rows, counted):
    """Return the translations and the model calls, search and re-scoring, if they are counted."""
    if not counted:
        return translator.translate(texts, decoder, 200, max_rows), None
    if hasattr(npad, "count_calls"):
        with npad.count_calls() as calls:
            translations = translator.translate(texts, decoder, 200, max_rows)
        return translations, (calls.search, calls.rescoring)
    model = getattr(npad, "Counted")(translator.model)  # noqa: B009 (of npad 0.1)
    translations = replace(translator, model=model).translate(texts, decoder, 200, max_rows)
    return translations, (model.calls, model.rescored)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("text", type=Path)
    parser.add_argument("--device", default="auto")
    arguments = parser.parse_args()

    opened = lzma.open if arguments.text.suffix == ".xz" else open
    with opened(arguments.text, "rt", encoding="utf-8") as file:
        texts = file.read().splitlines()
    translator = npad.load("en-de", arguments.device)
    for name, decoder in DECODERS.items():
        for max_rows in (1024, 8192):
            for counted in (False, True):
                for _ in range(RUNS):
                    start = time.perf_counter()
                    translations, calls = translate(translator, texts, decoder, max_rows, counted)
                    if torch.cuda.is_available():
                        torch.cuda.synchronize()
                    seconds = time.perf_counter() - start
                nll = -sum(each.log_prob for each in translations) / len(translations)
                kind = "counted" if counted else "plain"
                print(
                    f"{name:18} max_rows {max_rows:5} {kind:7} {seconds:6.2f} s  "
                    f"NLL {nll:.4f}  calls {calls}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
