"""Measure decoders on models of Firefox, and render the report.

python -m studies.firefox FOLDER --data en-pt --model en-pt=firefox-en-pt --model …

`--data` holds SET.LANGUAGE.xz for the sets `tatoeba` and `tico19`. The first lines of Tatoeba are
the validation set, which chooses the noise. Without --model, the report is rendered again from
FOLDER/figures.jsonl.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

import npad
from npad import NPAD, Beam, Decoding, Greedy, Noise, Sampling, Translator
from npad.evaluate.plots import Curve, Panel, Point, curves
from npad.evaluate.report import Evaluation
from npad.reproduce.markdown import document, markdown_table
from npad.reproduce.record import Record
from npad.search.selected import Selected
from npad.selectors import LengthNormalised
from npad.storage.atomic import write_atomic
from npad.text.files import read_lines

VALIDATION = 500  # lines of Tatoeba
SETS = ("tatoeba", "tico19")
TITLES = {"tatoeba": "Tatoeba, everyday sentences", "tico19": "TICO-19, medical texts"}
NOISES = [
    *(Noise(sigma, relative=True) for sigma in (0.3, 0.5, 1.0)),
    *(Noise(sigma) for sigma in (0.3, 1.0)),
]
BASELINE, PLAIN = "greedy", "NPAD-10 + greedy"
PICTURE, FIGURES = "bleu.png", "figures.jsonl"


def named(noise: Noise) -> str:
    """Return a noise in the words of the report."""
    return f"σ₀ {noise.sigma:g}{' of the RMS' if noise.relative else ''}"


Rows = Callable[[str, str, str], dict[str, Any]]  # direction, set, decoder -> figures


def decoders(noise: Noise) -> dict[str, npad.Decoder]:
    """Return the decoders of the report by name."""
    normalised = LengthNormalised()
    return {
        BASELINE: Greedy(),
        "beam 5": Beam(5),
        "beam 10": Beam(10),
        "beam 10, length-normalised": Selected(Beam(10, nbest=10), normalised),
        "10 samples at T = 0.5": Sampling(10, 0.5),
        PLAIN: NPAD(Greedy(), 10, noise),
        "NPAD-10 + greedy, length-normalised": NPAD(Greedy(), 10, noise, selector=normalised),
    }


class Experiment:
    """The test sets of one direction, and the decoders measured on them.

    Args:
        model: the translator.
        data: the folder of the sets.
        direction: FROM-TO.
        limit: sentences per set at most, for a trial.
    """

    def __init__(self, model: Translator, data: Path, direction: str, limit: int | None) -> None:
        self.model = model
        self.pairs = {}
        for name in SETS:
            sides = [list(read_lines(data / f"{name}.{code}.xz")) for code in direction.split("-")]
            self.pairs[name] = [lines[VALIDATION if name == "tatoeba" else 0 :] for lines in sides]
            if name == "tatoeba":
                self.pairs["valid"] = [lines[:VALIDATION] for lines in sides]
        self.pairs = {name: [s[:limit] for s in sides] for name, sides in self.pairs.items()}
        self.baselines: dict[str, Any] = {}

    def measure(self, name: str, decoder: npad.Decoder) -> dict[str, Any]:
        """Return the figures of a decoder on a set, and its difference to greedy search."""
        evaluation = Evaluation(self.model, *self.pairs[name])
        if name not in self.baselines:
            self.baselines[name] = evaluation.evaluate(Decoding(Greedy()))
        baseline, greedy = self.baselines[name]
        start = time.process_time()
        report, outputs = evaluation.evaluate(Decoding(decoder))
        seconds = time.process_time() - start
        below = sum(
            (o.hypothesis.finished, o.log_prob) < (g.hypothesis.finished, g.log_prob - 1e-4)
            for o, g in zip(outputs, greedy, strict=True)
        )
        figures = report.against(baseline).to_json()
        return figures | {"cpu_seconds": seconds, "below_greedy": below}


def chosen(rows: Rows, direction: str) -> Noise:
    """Return the noise whose ten chains find the most probable outputs of the validation set."""
    return min(NOISES, key=lambda noise: rows(direction, "valid", named(noise))["nll"])


def render(rows: Rows, directions: Sequence[str]) -> str:
    """Return the report."""
    sections = {
        "What search adds": _summary(rows, directions),
        "Which noise": _noise_table(rows, directions),
    }
    for direction in directions:
        for name in SETS:
            sections[f"{direction}, {TITLES[name]}"] = _table(rows, direction, name)
    return document("Firefox's translation models", LEAD, sections)


LEAD = """Firefox translates with small Transformers whose decoder is recurrent (SSRU), distilled so
that greedy search suffices. This report measures what other decoders add.

```
npad fetch firefox-en-pt
npad fetch firefox-pt-en
python -m studies.firefox FOLDER --data en-pt --limit 800 \\
    --model en-pt=firefox-en-pt --model pt-en=firefox-pt-en
```

NLL is the mean of −log p per output, its end included, under the float32 model. Brackets hold 95 %
intervals of a paired bootstrap over the difference to greedy search; a difference is clear if its
interval excludes zero, without a correction for the number of comparisons. Model calls are per
sentence, re-scoring included. CPU time is that of one thread for the whole set, on a machine that
was busy.
"Below" counts the outputs that are less probable than greedy search's.
"""


def _summary(rows: Rows, directions: Sequence[str]) -> str:
    """Return how often a decoder differs clearly from greedy search, and the picture."""
    names = [name for name in decoders(NOISES[0]) if name != BASELINE]
    lines = []
    for metric, title in {"nll": "NLL", "bleu": "BLEU", "chrf": "chrF"}.items():
        sign = -1 if metric == "nll" else 1
        gains = [rows(d, s, n)[f"{metric}_gain"] for d in directions for s in SETS for n in names]
        better = sum(min(sign * gain["low"], sign * gain["high"]) > 0 for gain in gains)
        worse = sum(max(sign * gain["low"], sign * gain["high"]) < 0 for gain in gains)
        values = [gain["value"] for gain in gains]
        spread = f"from {min(values):+.2f} to {max(values):+.2f}"
        lines.append(
            f"- {title}: clearly better in {better} of {len(gains)} comparisons with greedy "
            f"search, clearly worse in {worse}; differences {spread}.\n"
        )
    below = sum(rows(d, s, PLAIN)["below_greedy"] for d in directions for s in SETS)
    lines.append(f"- Outputs of NPAD that are less probable than greedy search's: {below}.\n")
    return "".join(lines) + f"\n![BLEU by model calls]({PICTURE})\n"


def plot(rows: Rows, directions: Sequence[str], path: Path) -> None:
    """Draw BLEU by model calls, a panel per direction and set."""
    panels = []
    for direction in directions:
        for name in SETS:
            found = {n: rows(direction, name, n) for n in decoders(NOISES[0])}
            drawn = {n: Curve(strategy_of(n), [_point(row)]) for n, row in found.items()}
            heading = f"{direction}, {name}: BLEU − greedy search's"
            panels.append(Panel("model calls per sentence", heading, drawn))
    curves(panels, path, note="bars: 95 % intervals of the difference")


def strategy_of(decoder: str) -> str:
    """Return the strategy in whose colour a decoder is drawn."""
    strategies = {"beam": "beam", "samples": "sampling", "NPAD": "NPAD"}
    return next((colour for word, colour in strategies.items() if word in decoder), "greedy")


def _point(row: dict[str, Any]) -> Point:
    gain = row["bleu_gain"]
    return Point(_calls(row), gain["value"], (gain["high"] - gain["low"]) / 2)


def _calls(row: dict[str, Any]) -> float:
    return float((row["calls"] + row["rescored"]) / row["sentences"])


def _noise_table(rows: Rows, directions: Sequence[str]) -> str:
    header = ["NPAD-10, NLL of the validation set", *directions]
    names = [BASELINE, *map(named, NOISES)]
    body = [[name, *(f"{rows(d, 'valid', name)['nll']:.3f}" for d in directions)] for name in names]
    picks = ", ".join(f"{named(chosen(rows, d))} for {d}" for d in directions)
    size = rows(directions[0], "valid", BASELINE)["sentences"]
    text = f"The first {size} lines of Tatoeba, which the test set below leaves out, choose"
    return f"{text} {picks}.\n\n{markdown_table(header, body)}"


def _table(rows: Rows, direction: str, name: str) -> str:
    header = ["decoder", "NLL", "BLEU", "− greedy", "chrF", "− greedy", "calls", "CPU s", "below"]
    body = []
    for decoder in decoders(NOISES[0]):
        row = rows(direction, name, decoder)
        line = [decoder, f"{row['nll']:.3f}", f"{row['bleu']:.2f}", _gain(row, "bleu")]
        line += [f"{row['chrf']:.2f}", _gain(row, "chrf")]
        line += [f"{_calls(row):.0f}", f"{row['cpu_seconds']:.0f}"]
        body.append([*line, str(row["below_greedy"])])
    size = rows(direction, name, BASELINE)["sentences"]
    return f"{size:,} sentences.\n\n{markdown_table(header, body)}"


def _gain(row: dict[str, Any], metric: str) -> str:
    gain = row[f"{metric}_gain"]
    return f"{gain['value']:+.2f} [{gain['low']:+.2f}, {gain['high']:+.2f}]"


def measure(
    record: Record, model: Translator, data: Path, direction: str, limit: int | None
) -> None:
    """Measure what the record lacks of a direction."""
    experiment = Experiment(model, data, direction, limit)

    def row(name: str, key: str, decoder: npad.Decoder) -> None:
        found = record.row((direction, name, key), lambda: experiment.measure(name, decoder))
        print(direction, name, key, f"NLL {found['nll']:.3f} BLEU {found['bleu']:.2f}", flush=True)

    row("valid", BASELINE, Greedy())
    for noise in NOISES:
        row("valid", named(noise), NPAD(Greedy(), 10, noise))
    noise = chosen(lambda *key: record.row(key), direction)
    for name in SETS:
        for key, decoder in decoders(noise).items():
            row(name, key, decoder)


def main() -> None:
    """Parse the command line, measure and render."""
    parser = argparse.ArgumentParser(description="What search adds to Firefox's models.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--model", action="append", default=[], help="FROM-TO=MODEL")
    parser.add_argument("--limit", type=int, help="sentences per set; all by default")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    record = Record(arguments.folder / FIGURES)
    models = dict(model.split("=", 1) for model in arguments.model)
    torch.set_num_threads(1)
    for direction, model in models.items():
        measure(record, npad.load(model), arguments.data, direction, arguments.limit)
    directions = sorted({key[0] for key in record.results})

    def rows(*key: str) -> dict[str, Any]:
        return dict(record.row(key))

    plot(rows, directions, arguments.folder / PICTURE)
    write_atomic(arguments.folder / "README.md", render(rows, directions))


if __name__ == "__main__":
    main()
