"""Quality of NPAD with noisy chains in int8, beside chains in float32, on real sentences.

python benchmarks/int8.py --data tatoeba-en-de      the model that ships, 200 lines of test.en.xz
python benchmarks/int8.py --data DIR --model RUN --source en --target cs --split test2016

NLL is the mean over sentences under the clean model, BLEU is sacrebleu's. The difference is int8
minus float32, with its 95 % bootstrap interval. Seconds are of a single run.
"""

from __future__ import annotations

import argparse
import time
from operator import eq
from pathlib import Path

from rich.console import Console
from rich.table import Table

import npad
from npad import NPAD, Greedy, Noise
from npad.evaluate.bootstrap import paired
from npad.metrics.bleu import Bleu
from npad.metrics.metric import LogProb, Scorer
from npad.text.files import read_lines


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--data",
        type=Path,
        required=True,
        help="folder with SPLIT.LANGUAGE.xz, a sentence per line",
    )
    for name, value in {"model": "en-de", "split": "test", "source": "en", "target": "de"}.items():
        parser.add_argument(f"--{name}", default=value, help=f"default {value}")
    for name, value in {"sentences": 200, "chains": 50}.items():
        parser.add_argument(f"--{name}", type=int, default=value, help=f"default {value}")
    parser.add_argument("--sigma", type=float, default=0.3, help="default 0.3")
    arguments = parser.parse_args()
    texts, references = (
        list(read_lines(arguments.data / f"{arguments.split}.{language}.xz"))[: arguments.sentences]
        for language in (arguments.source, arguments.target)
    )
    bleu, log_prob = Scorer(Bleu(), references), LogProb()
    settings = f"NPAD-{arguments.chains}, σ {arguments.sigma}"
    table = Table(title=f"{settings}, {len(texts)} sentences, model {arguments.model}")
    for column in ("", "NLL", "BLEU", "length ratio", "seconds"):
        table.add_column(column, justify="left" if column == "" else "right")
    probabilities, counts, outputs = [], [], []
    npad_decoder = NPAD(Greedy(), arguments.chains, Noise(arguments.sigma))
    rows = {
        "greedy": ("float32", Greedy()),
        **{
            f"NPAD, {precision} chains": (precision, npad_decoder)
            for precision in ("float32", "int8")
        },
    }
    for name, (precision, decoder) in rows.items():
        translator = npad.load(arguments.model, precision=precision)
        start = time.perf_counter()
        translations = translator.translate(texts, decoder)
        seconds = time.perf_counter() - start
        outputs.append([translation.text for translation in translations])
        scores = [translation.log_prob for translation in translations]
        probabilities.append(LogProb.of(scores))
        counts.append(bleu.statistics(outputs[-1]))
        table.add_row(
            name,
            f"{-log_prob.score(probabilities[-1]):.3f}",
            f"{bleu.metric.score(counts[-1]):.2f}",
            f"{bleu.metric.length_ratio(counts[-1].sum(0)):.3f}",
            f"{seconds:.0f}",
        )
    less = paired(log_prob, probabilities[:0:-1], (-1, 1))
    differences = less, paired(bleu.metric, counts[:0:-1])
    table.add_row("int8 − float32", *map(str, differences), "", "")
    equal = sum(map(eq, outputs[1], outputs[2]))
    Console().print(table, f"{equal} of {len(texts)} translations are the same with both")


if __name__ == "__main__":
    main()
