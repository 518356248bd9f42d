"""The report on steering: `studies.steering.scores` in tables, and the aims.

python -m studies.steering.report FOLDER --set OUTPUTS.jsonl.gz DATA

scores the outputs of each set with the references in its DATA, adds them to FOLDER/figures.jsonl,
and writes FOLDER/README.md. Without --set it writes the report again from the results.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path

from npad.errors import InvalidInput, NpadError
from npad.reproduce.data import ParallelText
from npad.reproduce.markdown import markdown_table
from npad.reproduce.record import Record
from npad.storage.atomic import write_atomic
from studies.steering.aims import (
    DEVICES,
    NEAR,
    SLOWER,
    SetResults,
    above_beam,
    aims,
    fast,
    near,
    reached,
)
from studies.steering.experiment import Steering
from studies.steering.findings import findings
from studies.steering.grid import grid_table
from studies.steering.scores import score_outputs
from studies.steering.variant import Variant

RESULTS = "figures.jsonl"
SETTINGS = (
    "kind",
    "units",
    "inputs",
    "sites",
    "data",
    "width",
    "targets",
    "epochs",
    "rate",
    "decay",
    "dropout",
)
SETS_NEEDED = 2
TIMED = 100  # test sentences that are timed for the report of one data set
LEGEND = """\
NLL is the mean −log p of the output under the clean model, whatever decoded, its end included; BLEU
and chrF are sacrebleu's with its defaults, of detokenised text; `length` is words of output over
words of reference. Figures with ± are means over seeds with their standard deviation: a seed is
another actor, other fine-tuned weights, other noise. Brackets hold 95 % intervals of a paired
bootstrap over the sentences, of the mean over the seeds. `calls` are rows through one step of the
model, a sentence; `re-scored` the same by the clean judge. Seconds are medians of several passes
over the sentences that are named, with the first seed.

`steered` is search over the model with an actor that pushes its state before every transition.
`fine-tuned` is the model with all weights trained on the pairs that the actor learnt, without
an actor: a gain that it has, too, is distillation. NPAD over a steered model has noise on top of
the pushes; its chain 0 has none, so it is steered greedy search, and greedy search without an actor
is not among its chains. `length-normalised` selects by log p per token, among all finished
hypotheses of a beam, or among what the chains found; for greedy search it changes nothing. Samples
are at T = 0.5, as many as fit in the calls of the beam that is named; the most probable is kept.
"""


def render(results: Record) -> str:
    """Return the report as Markdown.

    Raises:
        InvalidInput: there are no results.
    """
    titles = [key[1] for key in results.results if key[0] == "about"]
    if not titles:
        raise InvalidInput(f"{results.path} has no results; run the experiment first")
    sets = [SetResults(results, title) for title in titles]
    parts = [
        "# Steering: beam quality at the cost of greedy search?\n",
        f"{_answer(sets)}\n",
        "## The aims\n",
        aims(sets),
        "## What the figures say\n",
        findings(sets),
        *(part for data in sets for part in (f"## {data.title}\n", _setup(data), table(data))),
        "## Columns and rows\n",
        LEGEND,
    ]
    notes = [value for key, value in results.results.items() if key[0] == "note"]
    if notes:
        parts[2:2] = ["\n".join(f"- {note['text']}" for note in notes) + "\n"]
    grid = grid_table(results)
    if grid:
        parts += ["## The grid\n", grid]
    return "\n".join(parts)


def _answer(sets: Sequence[SetResults]) -> str:
    timed = [data for data in sets if fast(data) is not None]
    close, quick = sum(bool(near(data)) for data in sets), sum(bool(fast(data)) for data in timed)
    good, held = sum(map(reached, sets)), sum(map(above_beam, sets))
    first = "reached" if good >= SETS_NEEDED else "missed"
    second = "reached" if held == len(sets) else "missed"
    return (
        f"Steered greedy search is within {NEAR} BLEU of a beam of 5 on {close} of {len(sets)} "
        f"data sets, and takes at most {SLOWER} times greedy search's time, on a GPU if it was "
        f"timed there, on {quick} of the {len(timed)} that were timed: the aim, both on "
        f"{SETS_NEEDED} sets, is **{first}**. "
        "NPAD-5 over it is at or above a beam of 10, both length-normalised, for no more calls, "
        f"on {held} of {len(sets)}: the aim, all of them, is **{second}**.\n"
    )


def table(data: SetResults) -> str:
    """Return the table of a set."""
    header = ["system", "NLL", "BLEU", "chrF", "length", "BLEU − beam 5", "calls", "re-scored"]
    devices = [
        device for device in DEVICES if any(key[:2] == ("seconds", device) for key in data.found)
    ]
    header += [f"s, {DEVICES[device]}" for device in devices]
    lines = []
    for system in data.systems:
        gap = data.difference(system, "beam 5")
        rescored = data.mean(system, "rescored")
        times = [data.seconds(device, system) for device in devices]
        lines.append(
            [
                system,
                data.cell(system, "nll"),
                data.cell(system, "bleu"),
                data.cell(system, "chrf"),
                f"{data.mean(system, 'length'):.3f}",
                "" if gap is None else str(gap),
                f"{data.mean(system, 'calls'):.0f}",
                f"{rescored:.0f}" if rescored else "–",
                *("–" if seconds is None else f"{seconds:.3f}" for seconds in times),
            ]
        )
    return markdown_table(header, lines)


def _setup(data: SetResults) -> str:
    about, found = data.about, data.found
    model = about["model"]
    trained = f", validation perplexity {about['perplexity']:.2f}" if about["perplexity"] else ""
    lines = [
        f"{about['sentences']:,} sentences of {about['set']}; the model {model['name']} of "
        f"{model['units']} units{trained}; torch {about['torch']}."
    ]
    actors = [value for key, value in found.items() if key[:2] == ("actor", "actor")]
    if actors:
        variant = asdict(Variant(**actors[0]["variant"]))  # with fields that are newer
        best = [max(point["criterion"] for point in actor["curve"]) for actor in actors]
        settings = ", ".join(f"{name} {variant[name]}" for name in SETTINGS)
        lines.append(
            f"Actors of {len(actors)} seed{'s' * (len(actors) > 1)}, "
            f"{actors[0]['parameters']:,} parameters, {actors[0]['pairs']:,} pairs: {settings}. "
            f"Validation BLEU of greedy search {actors[0]['greedy']:.2f}, with the actors "
            f"{', '.join(f'{score:.2f}' for score in best)}."
        )
        curve = actors[0]["curve"]
        lines.append(
            "By epoch of the first one, perplexity of the pairs and validation BLEU: "
            + ", ".join(f"{p['perplexity']:.3f} and {p['criterion']:.2f}" for p in curve)
            + "."
        )
        last = sum(not actor["improved"] for actor in actors)
        if last:
            lines.append(f"Never better there, and kept after the last epoch: {last} of them.")
    tuned = [value for key, value in found.items() if key[:2] == ("weights", "weights")]
    if tuned:
        best = [max(point["criterion"] for point in weights["curve"]) for weights in tuned]
        variant = tuned[0]["variant"]
        lines.append(
            f"Fine-tuned weights: {len(tuned)} seed{'s' * (len(tuned) > 1)}, "
            f"rate {variant['rate']:g}, "
            f"{variant['epochs']} epoch{'s' * (variant['epochs'] > 1)}; validation BLEU "
            f"{', '.join(f'{score:.2f}' for score in best)}."
        )
    if ("chosen",) in found:
        grids = found[("chosen",)]["log_prob"]
        sigmas = {over: max(grid, key=grid.__getitem__) for over, grid in grids.items()}
        lines.append(
            f"σ₀ by validation: {sigmas['clean']} over the clean model, {sigmas['steered']} over "
            "the steered one."
        )
    for device, name in DEVICES.items():
        timed = [value for key, value in found.items() if key[:2] == ("seconds", device)]
        if timed:
            lines.append(
                f"{name}: {timed[0]['device']}, {timed[0]['sentences']:,} sentences at a time."
            )
    return " ".join(lines) + "\n"


def write(folder: Path) -> None:
    """Write README.md from the results of a folder."""
    write_atomic(folder / "README.md", render(Record(folder / RESULTS)))


def main(arguments: Sequence[str] | None = None) -> None:
    """Score outputs, and write the report."""
    parser = argparse.ArgumentParser(
        prog="python -m studies.steering.report",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument(
        "--set", nargs=2, type=Path, action="append", default=[], metavar=("OUTPUTS", "DATA")
    )
    parser.add_argument(
        "--note", nargs=2, action="append", default=[], metavar=("SET", "TEXT"), help="to be read"
    )
    parser.add_argument("--from", dest="source", default="en", help="source language")
    parser.add_argument("--to", dest="target", help="target language")
    options = parser.parse_args(arguments)
    try:
        options.folder.mkdir(parents=True, exist_ok=True)
        results = Record(options.folder / RESULTS)
        for outputs, data in options.set:
            score_set(results, outputs, ParallelText.find(data, options.source, options.target))
        for title, text in options.note:
            number = sum(key[:2] == ("note", title) for key in results.results)
            results.row(("note", title, number), partial(dict, text=text))
        write(options.folder)
    except NpadError as error:
        raise SystemExit(f"error: {error}") from error


def finish(steering: Steering) -> None:
    """Time and score what an experiment decoded, and write the report into its folder."""
    steering.time(TIMED)
    score_set(Record(steering.folder / RESULTS), steering.path, steering.plan.text)
    write(steering.folder)


def score_set(results: Record, outputs: Path, text: ParallelText) -> None:
    """Score the outputs of a data set by its references."""
    score_outputs(results, outputs, {name: pairs.references for name, pairs in text.sets().items()})


if __name__ == "__main__":
    main()
