"""Measure required terms on sentences that have one, and render the report.

python -m studies.terminology FOLDER --data tatoeba-en-de [--limit N]

`--data` holds train, test and valid as SET.LANGUAGE.xz. The glossary is made from the training
pairs and the test references, without any model. Without --data, the report is rendered again from
FOLDER/figures.jsonl. What that file lacks is measured; differences need all measured in one run.
"""

from __future__ import annotations

import argparse
import re
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch

import npad
from npad import NPAD, Beam, Decoding, Greedy, Noise
from npad.constraints import Terms
from npad.evaluate.bootstrap import Difference, paired
from npad.evaluate.report import Evaluation
from npad.metrics.bleu import Bleu
from npad.metrics.metric import FloatArray, Metric, Reference
from npad.reproduce.markdown import document, markdown_table
from npad.reproduce.record import Record
from npad.storage.atomic import write_atomic
from npad.text.files import read_lines

MODEL = "en-de"
RARE = 20  # training pairs that a word of the glossary occurs in at least
BEST, OTHER = 0.3, 0.05  # association (Dice) of a word and its best translation, and others
OPTIONS = 4  # translations of a word that are considered
DECODERS = {
    "greedy": Greedy(),
    "beam 5": Beam(5),
    "beam 10": Beam(10),
    "beam 20": Beam(20),
    "NPAD-10 + greedy": NPAD(Greedy(), 10, Noise(0.3)),
}
BASELINE = "beam 5"
EDITED = "beam 5, edited"
COMPARED = (EDITED, *(f"{name}, terms" for name in DECODERS))


def words(text: str) -> set[str]:
    """Return the words of a text."""
    return set(re.findall(r"\w+", text))


class TermShare(Metric):
    """The share of required terms that outputs have as whole words; a reference lists them."""

    name, title, unit = "terms", "terms", "%"

    def statistics(
        self, texts: Sequence[str], references: Sequence[Reference], log_probs: Sequence[float] = ()
    ) -> FloatArray:
        pairs = zip(texts, references, strict=True)
        counts = [[sum(t in words(text) for t in own), len(own)] for text, own in pairs]
        return np.array(counts, dtype=float)

    def scores(self, sums: FloatArray) -> FloatArray:
        return 100 * sums[..., 0] / sums[..., 1]


def translations(english: Sequence[str], german: Sequence[str]) -> dict[str, list[str]]:
    """Return for each English word with several German nouns those, by association, best first."""
    of_english: Counter[str] = Counter()
    of_german: Counter[str] = Counter()
    pairs: Counter[tuple[str, str]] = Counter()
    for source, target in zip(english, german, strict=True):
        sources = {word.lower() for word in words(source) if word.isalpha()}
        # A capital begins every sentence; within one, it begins nouns.
        targets = {word for word in words(target[1:]) if word[0].isupper() and len(word) > 2}
        of_english.update(sources)
        of_german.update(targets)
        pairs.update(product(sources, targets))
    found: dict[str, list[tuple[float, str]]] = {}
    for (source, target), count in pairs.items():
        if min(of_english[source], of_german[target]) >= RARE:
            dice = 2 * count / (of_english[source] + of_german[target])
            if dice >= OTHER:
                found.setdefault(source, []).append((dice, target))
    return {
        source: [target for _, target in sorted(options, reverse=True)[:OPTIONS]]
        for source, options in found.items()
        if len(options) > 1 and max(options)[0] >= BEST
    }


class Experiment:
    """The sentences that have a term, and the glossary.

    A client's glossary has one translation per word. Here it is the one that most references of
    the test set have; sentences are those whose source has a term and whose reference has all of
    its translations.

    Args:
        data: the folder of the sets.
        limit: sentences at most, for a trial.
    """

    def __init__(self, data: Path, limit: int | None) -> None:
        sides = [
            [list(read_lines(data / f"{name}.{code}.xz")) for code in ("en", "de")]
            for name in ("train", "test")
        ]
        self.options = translations(*sides[0])
        counts = {word: Counter[str]() for word in self.options}
        for source, reference in zip(*sides[1], strict=True):
            found = words(reference)
            for word in {word.lower() for word in words(source)} & self.options.keys():
                counts[word].update(found.intersection(self.options[word]))
        pairs = {  # of equal counts the last by name, so that all runs agree
            word: max(own, key=lambda target: (own[target], target))
            for word, own in counts.items()
            if own
        }
        self.terms = Terms(tuple(sorted(pairs.items())))
        kept = [
            (source, reference)
            for source, reference in zip(*sides[1], strict=True)
            if (own := self.terms.required(source)) and words(reference) >= set(own)
        ][:limit]
        self.sources, self.references = ([pair[side] for pair in kept] for side in (0, 1))
        self.required = [self.terms.required(source) for source in self.sources]
        self.model = npad.load(MODEL)
        self.evaluation = Evaluation(self.model, self.sources, self.references)
        self.texts: dict[str, list[str]] = {}  # the outputs of what has been measured

    def measure(self, key: str, decoder: npad.Decoder, constrained: bool) -> dict[str, Any]:
        """Return the figures of a decoder with or without the terms."""
        start = time.process_time()
        constraint = self.terms if constrained else None
        report, outputs = self.evaluation.evaluate(Decoding(decoder, constraint=constraint))
        seconds = time.process_time() - start
        texts = [output.text for output in outputs]
        nll = -sum(output.log_prob for output in outputs) / len(outputs)
        return self.figures(key, texts) | {
            "nll": nll,
            "cpu_seconds": seconds,
            "calls": report.to_json()["calls"],
        }

    def edited(self) -> dict[str, Any]:
        """Return the figures of outputs in which another translation of a term is replaced."""
        outputs = self.model.translate(self.sources, DECODERS[BASELINE])
        texts = []
        for output, source, required in zip(outputs, self.sources, self.required, strict=True):
            text = output.text
            present = {word.lower() for word in words(source)} & self.options.keys()
            for word in sorted(present):
                wanted = dict(self.terms.pairs).get(word)
                if wanted is None or wanted not in required or wanted in words(text):
                    continue
                others = [other for other in self.options[word] if other in words(text)]
                for other in others[:1]:
                    text = re.sub(rf"\b{re.escape(other)}\b", wanted, text, count=1)
            texts.append(text)
        return self.figures(EDITED, texts)

    def compared(self, key: str, other: str) -> dict[str, Any]:
        """Return the differences of two that this run has measured, with paired intervals."""
        metrics: list[tuple[Metric, Sequence[Reference]]]
        metrics = [(TermShare(), self.required), (Bleu(), self.references)]
        found = {}
        for metric, references in metrics:
            both = [metric.statistics(self.texts[name], references) for name in (key, other)]
            found[metric.name] = vars(paired(metric, both))
        return found

    def figures(self, key: str, texts: list[str]) -> dict[str, Any]:
        """Return the share of terms that outputs have, and their BLEU."""
        self.texts[key] = texts
        pairs = [(t, term) for t, own in zip(texts, self.required, strict=True) for term in own]
        exact = sum(term in words(text) for text, term in pairs)
        begun = sum(any(w.startswith(term) for w in words(text)) for text, term in pairs)
        metric = Bleu()
        statistics = metric.statistics(list(texts), self.references)
        return {
            "sentences": len(texts),
            "terms": len(pairs),
            "exact": exact,
            "begun": begun,
            "bleu": float(metric.score(statistics)),
            "glossary": len(self.terms.pairs),
        }


Rows = Callable[..., dict[str, Any]]


def render(rows: Rows) -> str:
    """Return the report."""
    header = ["decoder", "terms", "as the beginning of a word", "BLEU", "NLL", "CPU s"]
    body = []
    for key in [*DECODERS, EDITED, *(f"{name}, terms" for name in DECODERS)]:
        row = rows(key)
        shares = [f"{100 * row[name] / row['terms']:.1f} %" for name in ("exact", "begun")]
        nll = f"{row['nll']:.2f}" if "nll" in row else ""
        seconds = f"{row['cpu_seconds']:.0f}" if "cpu_seconds" in row else ""
        body.append([key, *shares, f"{row['bleu']:.1f}", nll, seconds])
    row = rows(BASELINE)
    size = f"{row['sentences']:,} sentences with {row['terms']:,} terms of {row['glossary']:,}"
    table = markdown_table(header, body)
    columns = [
        "",
        *(f"{name} − {other}" for other in (BASELINE, EDITED) for name in ("terms", "BLEU")),
    ]
    differences = []
    for key in COMPARED:
        cells = [""] * 4
        for place, other in enumerate((BASELINE, EDITED)):
            if key != other:
                found = rows(key, other)
                cells[2 * place : 2 * place + 2] = [
                    str(Difference(**found[name])) for name in ("terms", "bleu")
                ]
        differences.append([key, *cells])
    beside = f"{INTERVALS}\n\n{markdown_table(columns, differences)}"
    results = {"Results": f"{size} in the glossary.\n\n{table}", "Differences": beside}
    return document("Terminology", LEAD, results)


INTERVALS = """In per cent of the terms and in BLEU, with 95 % intervals of the paired bootstrap
over sentences (1,000 resampled test sets): beside the beam without terms, and beside its outputs
edited."""


LEAD = """What required terms do to translations of the shipped model en-de, on those sentences of
its Tatoeba test set that have one.

```
python -m studies.terminology docs/results/terminology --data tatoeba-en-de
```

The glossary is made without a model, from words that occur in at least 20 training pairs: English
words with a German noun of an association (Dice) of at least 0.3, and a second one of at least
0.05; of these nouns, up to four, it has the one that most test references have. A sentence
is kept if its source has a term and its reference has all its translations. So this is what a
glossary that is right adds; the references were used to choose it.

"Terms" is the share of required terms that an output has as a whole word; a term may also be the
beginning of a longer or inflected word, which is what the constraint asks for. "Edited" replaces,
in the output of the beam without terms, another German translation of the word by the required
one, if there is one. With beams, terms are enforced by dynamic beam allocation; with greedy search
and NPAD they only rank the outputs. NLL is the mean of −log p under the model. CPU time is that of
one thread, on a machine that was busy.
"""


def main() -> None:
    """Parse the command line, measure and render."""
    parser = argparse.ArgumentParser(description="What required terms do to translations.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--limit", type=int, help="sentences; all by default")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    record = Record(arguments.folder / "figures.jsonl")
    torch.set_num_threads(1)
    if arguments.data is not None:
        experiment = Experiment(arguments.data, arguments.limit)
        for name, decoder in DECODERS.items():
            for key, constrained in ((name, False), (f"{name}, terms", True)):
                record.row((key,), partial(experiment.measure, key, decoder, constrained))
                print(key, flush=True)
        record.row((EDITED,), experiment.edited)
        for key, other in product(COMPARED, (BASELINE, EDITED)):
            if key != other:
                record.row((key, other), partial(experiment.compared, key, other))
    write_atomic(arguments.folder / "README.md", render(lambda *key: record.row(key)))


if __name__ == "__main__":
    main()
