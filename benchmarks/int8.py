"""What noisy chains in int8 cost in quality: NPAD on real sentences, its chains in float32 and in int8.

python benchmarks/int8.py --data tatoeba-en-de                the model that ships, on 200 sentences of test.en.xz
python benchmarks/int8.py --data DIR --model RUN --source en --target cs --split test2016

NLL is the mean over sentences under the clean model, BLEU sacrebleu's; the difference is int8 minus float32, with the
interval of 95 of 100 test sets drawn from these sentences. Seconds are of one run each and tell little.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

import npad
from npad import NPAD, Greedy, Noise
from npad.evaluate.bleu import Bleu
from npad.evaluate.bootstrap import paired
from npad.text.files import read_lines


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--data", type=Path, required=True, help="folder with SPLIT.LANGUAGE.xz, a sentence a line"
    )
    for name, usual in {"model": "en-de", "split": "test", "source": "en", "target": "de"}.items():
        parser.add_argument(f"--{name}", default=usual, help=f"default {usual}")
    for name, number in {"sentences": 200, "chains": 50}.items():
        parser.add_argument(f"--{name}", type=int, default=number, help=f"default {number}")
    parser.add_argument("--sigma", type=float, default=0.3, help="default 0.3")
    asked = parser.parse_args()
    texts, references = (
        list(read_lines(asked.data / f"{asked.split}.{language}.xz"))[: asked.sentences]
        for language in (asked.source, asked.target)
    )
    bleu = Bleu(references)
    table = Table(
        title=f"NPAD-{asked.chains}, σ {asked.sigma}, {len(texts)} sentences, model {asked.model}"
    )
    for column in ("", "NLL", "BLEU", "length ratio", "seconds"):
        table.add_column(column, justify="left" if column == "" else "right")
    nll, counts, outputs = [], [], []
    rows = {
        "greedy": ("float32", Greedy()),
        **{
            f"NPAD, {p} chains": (p, NPAD(Greedy(), asked.chains, Noise(asked.sigma)))
            for p in ("float32", "int8")
        },
    }
    for name, (precision, decoder) in rows.items():
        translator = npad.load(asked.model, precision=precision)
        began = time.perf_counter()
        found = translator.translate(texts, decoder)
        took = time.perf_counter() - began
        outputs.append([one.text for one in found])
        nll.append([-one.log_prob for one in found])
        counts.append(bleu.counts(outputs[-1]))
        whole = counts[-1].sum(0)
        mean = sum(nll[-1]) / len(texts)
        table.add_row(
            name,
            f"{mean:.3f}",
            f"{Bleu.score(whole):.2f}",
            f"{Bleu.length_ratio(whole):.3f}",
            f"{took:.0f}",
        )
    apart = paired(nll[:0:-1], counts[:0:-1])
    table.add_row("int8 − float32", *map(str, apart), "", "")
    same = sum(one == other for one, other in zip(outputs[1], outputs[2], strict=True))
    Console().print(table, f"{same} of {len(texts)} translations are the same with both")


if __name__ == "__main__":
    main()
