"""The report on steering: `studies.steering.scores` in tables, and the aims.

python -m studies.steering.report FOLDER --set OUTPUTS.jsonl.gz DATA

scores the outputs of each set with the references in its DATA, adds them to FOLDER/figures.jsonl,
and writes FOLDER/README.md. Without --set it writes the report again from the results.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from npad.errors import InvalidInput, NpadError
from npad.reproduce.data import ParallelText
from npad.reproduce.markdown import document, markdown_table
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
    samples,
)
from studies.steering.experiment import Steering
from studies.steering.rows import SIZES
from studies.steering.scores import score_outputs
from studies.steering.variant import WEIGHTS, Variant

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
QUESTIONS = (
    ("does steering gain?", "steered greedy", "greedy"),
    ("as much as a beam?", "beam 5", "greedy"),
    ("is it distillation?", "steered greedy", "greedy, fine-tuned"),
    ("does fine-tuning gain?", "greedy, fine-tuned", "greedy"),
    ("as much as a beam?", "greedy, fine-tuned", "beam 5"),
    ("does NPAD gain from it?", "steered NPAD-5", "NPAD-5"),
    ("does NPAD gain from it?", "steered NPAD-10", "NPAD-10"),
    *(("against samples", "steered NPAD-10", name) for name in samples(10)),
)
BOLD = "Bold: the interval excludes zero. Of so many differences some do so by chance.\n"
EQUAL = 0.9  # share of a beam's calls below which samples are not at equal calls
MAIN = ("actor", "weights")  # the variants of the report's rows
LEGEND = """\
NLL is the mean −log p of the output under the clean model, whichever decoder found it, end token
included. BLEU and chrF are those of sacrebleu with its defaults, on detokenised text; `length` is
words of output over words of reference. Figures with ± are means over seeds with their standard
deviation; each seed has its own actor, fine-tuned weights and noise. Brackets are 95 % intervals of
a paired bootstrap over the sentences, for the mean over the seeds. `calls` are rows through one
step of the model per sentence; `re-scored` the same for re-scoring by the clean model. Seconds are
medians of several passes over the named sentences, with the first seed.

`steered` is search over the model with an actor that corrects its state before every transition.
`fine-tuned` is the model without an actor, with all weights trained on the pairs that the actor
learnt; a gain that both have is distillation. NPAD over a steered model adds noise to the actor's
correction. Its chain 0 has no noise and is steered greedy search; greedy search without an actor is
not among its chains. `length-normalised` selects by log p per token among all finished hypotheses
of a beam or of the chains; for greedy search it makes no difference. Samples are drawn at T = 0.5,
as many as fit in the calls of the named beam, and the most probable one is kept.
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
    notes = [value["text"] for key, value in results.results.items() if key[0] == "note"]
    listed = "".join(f"- {note}\n" for note in notes)
    sections = {"The aims": aims(sets), "What the figures say": findings(sets)}
    sections |= {data.title: f"{_setup(data)}\n{table(data)}" for data in sets}
    sections["Columns and rows"] = LEGEND
    if grid := grid_table(results):
        sections["The grid"] = grid
    lead = f"{_answer(sets)}\n" + (f"\n{listed}" if notes else "")
    return document("Steering: beam quality at the cost of greedy search?", lead, sections)


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


def findings(sets: Sequence[SetResults]) -> str:
    """Return the differences that the report is about, and what limits the comparison."""
    lines = []
    for question, first, second in QUESTIONS:
        gaps = [data.difference(first, second) for data in sets]
        cells = [
            "–" if gap is None else f"**{gap}**" if gap.low > 0 or gap.high < 0 else str(gap)
            for gap in gaps
        ]
        lines.append([question, f"{first} − {second}", *cells])
    header = ["question", "BLEU", *(data.title for data in sets)]
    limits = [limit for data in sets for limit in limits_of(data)]
    return "\n".join(
        [
            markdown_table(header, lines),
            BOLD,
            *(["".join(f"- {limit}\n" for limit in limits)] if limits else []),
        ]
    )


def limits_of(data: SetResults) -> list[str]:
    """Return what limits the comparison on a set, in sentences."""
    limits = []
    gain, whole = data.difference("steered greedy", "greedy"), data.difference("beam 5", "greedy")
    if gain is not None and whole is not None and whole.value > 0:
        share = f"{gain.value / whole.value:.0%}"
        limits.append(f"{data.title}: steering has {share} of the gain of a beam of 5.")
    if data.seeds("steered greedy") == 1:
        limits.append(f"{data.title}: one seed, so its figures lack the spread between actors.")
    for kind, name in (("actor", "the actor"), ("weights", "the fine-tuned weights")):
        trained = [value for key, value in data.found.items() if key[:2] == (kind, kind)]
        worse = [value for value in trained if best_of(value) <= value["greedy"]]
        if worse:
            figures = f"{best_of(worse[0]):.2f} against {worse[0]['greedy']:.2f}"
            limits.append(
                f"{data.title}: {name} never beat greedy search on the validation set with "
                f"{len(worse)} of {len(trained)} seeds ({figures}), so they would not be "
                "used, and their row is not a fair comparison."
            )
    for width in SIZES:
        if f"beam {width}" in data.systems:
            beam = data.mean(f"beam {width}", "calls")
            for name in samples(width):
                calls = data.mean(name, "calls") if name in data.systems else beam
                if calls < EQUAL * beam:
                    unequal = f"{calls:.0f} calls of the beam's {beam:.0f}"
                    limits.append(f"{data.title}: {name} are not at equal calls, {unequal}.")
    grids = data.found.get(("chosen",), {}).get("log_prob", {})
    edge = [over for over, grid in grids.items() if _best(grid) == max(grid, key=float)]
    if edge:
        models, largest = " and ".join(f"the {over} model" for over in edge), _best(grids[edge[0]])
        limits.append(
            f"{data.title}: σ₀ over {models} is the largest that was tried, {largest}; NPAD may "
            "gain from more."
        )
    return limits


def best_of(training: dict[str, Any]) -> float:
    """Return the best validation BLEU of an actor or of weights."""
    return float(max(point["criterion"] for point in training["curve"]))


def _best(grid: dict[str, float]) -> str:
    return max(grid, key=grid.__getitem__)


def grid_table(results: Record) -> str:
    """Return the table of all variants that were trained to choose from; empty without any."""
    lines = []
    for key, value in results.results.items():
        if key[0] in MAIN and key[2] not in MAIN:
            kind, title, name, seed = key
            scores = [point["criterion"] for point in value["curve"]]
            figures = results.results.get(("figures", title, f"grid {name}", seed))
            lines.append(
                [
                    f"{title}, `{name}`",
                    settings(value["variant"]),
                    f"{value['parameters']:,}" if kind == "actor" else "all weights",
                    f"{value['greedy']:.2f}",
                    f"{max(scores):.2f}",
                    f"{scores.index(max(scores)) + 1} of {len(scores)}",
                    "–" if figures is None else f"{figures['bleu']:.2f}",
                ]
            )
    if not lines:
        return ""
    header = ["variant", "settings", "parameters", "greedy", "with variant", "epoch", "test BLEU"]
    return (
        markdown_table(header, lines)
        + "\n"
        + _tried(results)
        + "\nOne seed. `greedy` and `with variant` are BLEU of words on the validation set, under "
        "greedy search; the best epoch is kept. The test set was not used to choose.\n"
    )


def _tried(results: Record) -> str:
    """Say how many variants of actors and of fine-tuned weights each data set chose from."""
    counts: dict[str, dict[str, int]] = {}
    for kind, title, *rest in results.results:
        if kind in MAIN:
            counts.setdefault(title, dict.fromkeys(MAIN, 0))[kind] += rest[0] not in MAIN
    words = (f"{title} {count['actor']} and {count['weights']}" for title, count in counts.items())
    return (
        f"Variants of the actor and of fine-tuning tried: {', '.join(words)}. A set without "
        "a grid of its own has the choice of another one, or the defaults; a kind of which more "
        "were tried has the advantage.\n"
    )


def settings(variant: Mapping[str, Any]) -> str:
    """Return the settings of a variant that are not the defaults, in words."""
    default = asdict(Variant("default"))
    if variant["kind"] == WEIGHTS:
        default |= {name: variant[name] for name in ("kind", "units", "layers", "inputs", "sites")}
        default |= {"epochs": None, "rate": None}
    changed = {
        name: value for name, value in variant.items() if name != "name" and value != default[name]
    }
    return ", ".join(f"{name} {value}" for name, value in changed.items()) or "the defaults"


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
