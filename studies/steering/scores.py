"""Figures of the outputs of `python -m studies.steering`, by sacrebleu, for the report.

Results are kept in `figures.jsonl` by key; those of (kind, title of the data set, …):

    about    the model and the test set
    chosen   what validation chose
    actor, weights    a training: variant, pairs, validation curve
    figures  NLL, BLEU, chrF, length, calls of a system with a seed
    difference   a system minus another one, mean over seeds, with intervals by paired bootstrap
    seconds  of a system on a device
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from npad.errors import InvalidInput
from npad.evaluate.bootstrap import paired
from npad.metrics.bleu import Bleu
from npad.metrics.chrf import Chrf
from npad.metrics.metric import LogProb, Scorer
from npad.reproduce.record import Record

Entry = dict[str, Any]  # a value of a record

NORMALISED = ", length-normalised"
# Differences that the report states, besides those of every system to a beam of 5.
COMPARED = (
    ("steered greedy", "greedy"),
    ("steered greedy", "greedy, fine-tuned"),
    ("greedy, fine-tuned", "greedy"),
    ("beam 5", "greedy"),
    ("steered NPAD-5", "NPAD-5"),
    ("steered NPAD-10", "NPAD-10"),
    ("steered NPAD-5", "steered greedy"),
    ("steered NPAD-5", f"beam 10{NORMALISED}"),
    ("steered NPAD-10", f"beam 10{NORMALISED}"),
    (f"steered NPAD-5{NORMALISED}", f"beam 10{NORMALISED}"),
    (f"steered NPAD-10{NORMALISED}", f"beam 10{NORMALISED}"),
    ("steered NPAD-10", "shared samples for beam 10"),
    ("steered NPAD-10", "arithmetic samples for beam 10"),
    ("steered NPAD-10", "stochastic beam 10"),
)


def by_system(outputs: Record) -> dict[str, dict[int, Entry]]:
    """Return the outputs by system and seed, length-normalised ones as systems of their own."""
    systems: dict[str, dict[int, Entry]] = {}
    for (kind, *key), record in outputs.results.items():
        if kind == "row":
            system, seed = key
            systems.setdefault(system, {})[seed] = record
            if "normalised" in record:
                chosen = record | record["normalised"]
                systems.setdefault(system + NORMALISED, {})[seed] = chosen
    return systems


def score_outputs(results: Record, path: Path, references: Mapping[str, Sequence[str]]) -> None:
    """Add the figures of a file of outputs to the results, unless they are there.

    Args:
        results: the record to add to.
        path: the file that the experiment wrote.
        references: the test sets by name.

    Raises:
        InvalidInput: the file has no outputs, or the references are of another test set.
    """
    outputs = Record(path)
    about, systems = outputs.results.get(("about",)), by_system(outputs)
    measured = any(kind in ("row", "seconds") for kind, *_ in outputs.results)
    if about is None or not measured:
        raise InvalidInput(f"{path} has no outputs of the experiment; run it first")
    title, name = about["title"], about["set"]
    if name not in references or len(references[name]) < about["sentences"]:
        raise InvalidInput(
            f"{path} has outputs of {about['sentences']:,} sentences of {name!r}, and the data has "
            f"{', '.join(f'{key} ({len(texts):,})' for key, texts in references.items())}"
        )
    bleu = Scorer(Bleu(), references[name][: about["sentences"]])
    for (kind, *key), value in outputs.results.items():
        if kind != "row":
            results.row((kind, title, *key), partial(dict, value))
    for system, seeds in systems.items():
        for seed, record in seeds.items():
            measure = partial(figures, record, bleu)
            results.row(("figures", title, system, seed), measure)
    wanted = [(system, "beam 5") for system in systems if system != "beam 5"]
    for system, against in dict.fromkeys((*COMPARED, *wanted)):
        if system in systems and against in systems:
            measure = partial(difference, systems[system], systems[against], bleu)
            results.row(("difference", title, system, against), measure)


def figures(record: Entry, bleu: Scorer) -> dict[str, Any]:
    """Return the figures of one system with one seed."""
    counts = bleu.statistics(record["texts"])
    letters = Chrf().statistics(record["texts"], bleu.references)
    return {
        "nll": -float(np.mean(record["log_probs"])),
        "bleu": bleu.metric.score(counts),
        "chrf": Chrf().score(letters),
        "length": bleu.metric.length_ratio(counts.sum(0)),
        "finished": record["finished"],
        "calls": record["calls"] / len(record["texts"]),
        "rescored": record["rescored"] / len(record["texts"]),
        "signature": record["signature"],
    }


def difference(
    first: Mapping[int, Entry], second: Mapping[int, Entry], bleu: Scorer
) -> dict[str, dict[str, float]]:
    """Return the mean over the first system's seeds minus the mean over the second's."""
    systems = [*first.values(), *second.values()]
    weights = [1 / len(first)] * len(first) + [-1 / len(second)] * len(second)
    log_probs = [LogProb.of(record["log_probs"]) for record in systems]
    less = paired(LogProb(), log_probs, [-weight for weight in weights])
    more = paired(bleu.metric, [bleu.statistics(record["texts"]) for record in systems], weights)
    return {"nll": vars(less), "bleu": vars(more)}
