"""The report on steering: `npad.experiments.steering_scores` in tables, and the aims.

python -m npad.experiments.steering_report FOLDER --set OUTPUTS.jsonl.gz DATA --grid GRID.jsonl.gz

scores the outputs of each set with the references in its DATA, adds them to FOLDER/results.jsonl,
and writes FOLDER/README.md. Without --set it writes the report again from the results.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from npad.errors import InvalidInput, NpadError
from npad.evaluate.bootstrap import Difference
from npad.experiments.data import ParallelText
from npad.experiments.record import Record as Results
from npad.experiments.steering_grid import grid_table
from npad.experiments.steering_scores import NORMALISED, score_outputs
from npad.experiments.tables import markdown
from npad.storage.atomic import write_atomic

RESULTS = "results.jsonl"
SYSTEMS = (
    "greedy",
    "steered greedy",
    "greedy, other weights",
    "beam 5",
    f"beam 5{NORMALISED}",
    "beam 10",
    f"beam 10{NORMALISED}",
    "steered beam 5",
    "beam 5, other weights",
    *(
        f"{over}NPAD-{n}{how}"
        for n in (5, 10)
        for over in ("", "steered ")
        for how in ("", NORMALISED)
    ),
    *(
        name.format(n)
        for n in (5, 10)
        for name in (
            "shared samples for beam {}",
            "arithmetic samples for beam {}",
            "stochastic beam {}",
        )
    ),
)
NEAR = 0.2  # BLEU that steered greedy search may be behind a beam of 5
SLOWER = 1.2  # the time that it may take, greedy search's being 1
SETS_NEEDED = 2
DEVICES = {"cuda": "GPU", "cpu": "CPU"}
LEGEND = """\
NLL is the mean −log p of the output under the clean model, whatever decoded, its end included; BLEU
and chrF are sacrebleu's with its defaults, of detokenised text; `length` is words of output over
words of reference. Figures with ± are means over seeds with their standard deviation: a seed is
another actor, other weights, other noise. Brackets hold 95 % intervals of a paired bootstrap over
the sentences, of the mean over the seeds. `calls` are rows through one step of the model, a
sentence; `re-scored` the same by the clean judge. Seconds are medians of several passes over the
test set, with the first seed, while nothing else ran; on the CPU over its first sentences.

`steered` is search over the model with an actor that pushes its state before every transition.
`other weights` is the model with all weights trained on the pairs that the actor learnt, without
an actor: a gain that it has, too, is distillation. NPAD over a steered model has noise on top of
the pushes; its chain 0 has none, so it is steered greedy search, and greedy search without an actor
is not among its chains. `length-normalised` selects by log p per token, among all finished
hypotheses of a beam, or among what the chains found; for greedy search it changes nothing. Samples
are at T = 0.5, as many as fit in the calls of the beam that is named; the most probable is kept.
"""


class SetResults:
    """The results of one data set.

    Args:
        results: all results.
        title: of the data set.
    """

    def __init__(self, results: Results, title: str) -> None:
        self.title = title
        self.found = {
            (key[0], *key[2:]): value
            for key, value in results.results.items()
            if key[1] == title and key[0] != "grid"
        }
        self.about: dict[str, Any] = self.found[("about",)]

    @property
    def systems(self) -> list[str]:
        """The systems that were measured, in the order of the report."""
        measured = {key[1] for key in self.found if key[0] == "figures"}
        return [system for system in SYSTEMS if system in measured]

    def figures(self, system: str) -> list[dict[str, Any]]:
        """Return the figures of a system, one per seed."""
        return [value for key, value in self.found.items() if key[:2] == ("figures", system)]

    def mean(self, system: str, figure: str) -> float:
        return statistics.fmean(row[figure] for row in self.figures(system))

    def cell(self, system: str, figure: str, digits: int = 2) -> str:
        values = [row[figure] for row in self.figures(system)]
        spread = f" ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else ""
        return f"{statistics.fmean(values):.{digits}f}{spread}"

    def difference(self, system: str, against: str, figure: str = "bleu") -> Difference | None:
        """Return the difference of two systems, or None if it was not measured."""
        value = self.found.get(("difference", system, against))
        return None if value is None else Difference(**value[figure])

    def seconds(self, device: str, system: str) -> float | None:
        """Return the median time of a system on a device, if it was measured."""
        value = self.found.get(("seconds", device, system.removesuffix(NORMALISED)))
        if value is None:
            value = self.found.get(("seconds", device, system))
        return None if value is None else statistics.median(value["seconds"])

    def ratio(self, device: str, system: str) -> float | None:
        """Return the time of a system on a device, greedy search's being 1."""
        seconds, greedy = self.seconds(device, system), self.seconds(device, "greedy")
        return None if seconds is None or greedy is None else seconds / greedy

    def seeds(self, system: str) -> int:
        return len(self.figures(system))


def render(results: Results) -> str:
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
        "\n".join(f"- {line}" for data in sets for line in findings(data)) + "\n",
        *(part for data in sets for part in (f"## {data.title}\n", _setup(data), table(data))),
        "## Columns and rows\n",
        LEGEND,
    ]
    grid = grid_table(results)
    if grid:
        parts += ["## The grid\n", grid]
    return "\n".join(parts)


def near(data: SetResults) -> bool | None:
    """Return whether steered greedy search is near a beam of 5 in BLEU; None if not measured."""
    gap = data.difference("steered greedy", "beam 5")
    return None if gap is None else gap.value >= -NEAR


def fast(data: SetResults) -> bool | None:
    """Return whether steered greedy search is about as fast as greedy search, on a GPU if timed."""
    ratios = [data.ratio(device, "steered greedy") for device in DEVICES]
    measured = [ratio for ratio in ratios if ratio is not None]
    return measured[0] <= SLOWER if measured else None


def reached(data: SetResults) -> bool:
    """Return whether the first aim is reached on a set."""
    return bool(near(data)) and bool(fast(data))


def above_beam(data: SetResults) -> bool:
    """Return whether NPAD-5 over steered greedy search is not below beam 10, length-normalised."""
    against = f"beam 10{NORMALISED}"
    for how in ("", NORMALISED):
        system = f"steered NPAD-5{how}"
        gap = data.difference(system, against)
        if gap is not None and gap.value >= 0:
            return data.mean(system, "calls") <= data.mean(against, "calls")
    return False


def _answer(sets: Sequence[SetResults]) -> str:
    good, held = sum(map(reached, sets)), sum(map(above_beam, sets))
    first = "reached" if good >= SETS_NEEDED else "missed"
    second = "reached" if held == len(sets) else "missed"
    return (
        f"Steered greedy search is within {NEAR} BLEU of a beam of 5, in at most {SLOWER} times "
        f"greedy search's time, on {good} of {len(sets)} data sets: the aim, {SETS_NEEDED} of 3, "
        f"is **{first}**. NPAD-5 over it is at or above a length-normalised beam of 10, for no "
        f"more calls, on {held} of {len(sets)}: the aim is **{second}**.\n"
    )


def aims(sets: Sequence[SetResults]) -> str:
    """Return the table of the aims: each stated as reached or missed, with its figures."""
    header = [
        "data set",
        "steered greedy − beam 5, BLEU",
        f"within {NEAR}",
        "time on the GPU",
        "search alone",
        "on the CPU",
        f"at most {SLOWER}",
        "aim",
    ]
    lines = []
    for data in sets:
        ratios = [
            data.ratio("cuda", "steered greedy"),
            data.ratio("cuda", "steered greedy, search alone"),
            data.ratio("cpu", "steered greedy"),
        ]
        cells = ["–" if ratio is None else f"{ratio:.2f}" for ratio in ratios]
        gap = data.difference("steered greedy", "beam 5")
        verdict = "reached" if reached(data) else "missed"
        lines.append([data.title, str(gap), _yes(near(data)), *cells, _yes(fast(data)), verdict])
    times = "Times are multiples of greedy search's; they hold the clean judge's re-scoring pass.\n"
    against = f"beam 10{NORMALISED}"
    second = ["data set", f"system − {against}, BLEU", "calls", f"{against}", "aim"]
    rows = []
    for data in sets:
        for n in (5, 10):
            for how in ("", NORMALISED):
                system = f"steered NPAD-{n}{how}"
                gap = data.difference(system, against)
                if gap is not None:
                    calls = [f"{data.mean(name, 'calls'):.0f}" for name in (system, against)]
                    verdict = "–" if n == 10 else "reached" if gap.value >= 0 else "missed"
                    rows.append([f"{data.title}, {system}", str(gap), *calls, verdict])
    return "\n".join([markdown(header, lines), times, markdown(second, rows)])


def findings(data: SetResults) -> list[str]:
    """Return what the figures of a set say, in sentences."""
    lines = []
    gain, whole = data.difference("steered greedy", "greedy"), data.difference("beam 5", "greedy")
    if gain is not None and whole is not None:
        share = (
            f", {gain.value / whole.value:.0%} of what a beam of 5 gains" if whole.value > 0 else ""
        )
        lines.append(
            f"{data.title}: steering gains {gain} BLEU over greedy search{share} ({whole})."
        )
    distilled = data.difference("steered greedy", "greedy, other weights")
    if distilled is not None:
        lines.append(
            f"{data.title}, is it distillation? All weights trained on the same pairs: "
            f"{_versus(distilled, 'the actor', 'they')}, {distilled} BLEU."
        )
    for n in (5, 10):
        npad = data.difference(f"steered NPAD-{n}", f"NPAD-{n}")
        if npad is not None:
            text = _versus(npad, "over the steered model", "over the clean one")
            lines.append(f"{data.title}: NPAD-{n} is {text}, {npad} BLEU.")
    for name in (
        "shared samples for beam 10",
        "arithmetic samples for beam 10",
        "stochastic beam 10",
    ):
        gap = data.difference("steered NPAD-10", name)
        if gap is not None:
            text = _versus(gap, "NPAD-10 over the steered model", f"the {name}")
            lines.append(f"{data.title}: {text}, {gap} BLEU.")
    return lines


def _versus(gap: Difference, first: str, second: str) -> str:
    """Say which of two is better, if the interval excludes zero."""
    if gap.low > 0:
        return f"better {first}" if first.startswith("over") else f"{first} is better"
    if gap.high < 0:
        return f"better {second}" if second.startswith("over") else f"{second} are better"
    return "no different beyond chance"


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
    return markdown(header, lines)


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
        variant = actors[0]["variant"]
        best = [max(point["criterion"] for point in actor["curve"]) for actor in actors]
        settings = ", ".join(
            f"{name} {variant[name]}"
            for name in (
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
            )
        )
        lines.append(
            f"{len(actors)} actors of {actors[0]['parameters']:,} parameters, each of "
            f"{actors[0]['pairs']:,} pairs: {settings}. Validation BLEU of greedy search "
            f"{actors[0]['greedy']:.2f}, with the actors "
            f"{', '.join(f'{score:.2f}' for score in best)}."
        )
        last = sum(not actor["improved"] for actor in actors)
        if last:
            lines.append(f"{last} of them were never better there; their last epoch was kept.")
    tuned = [value for key, value in found.items() if key[:2] == ("weights", "weights")]
    if tuned:
        best = [max(point["criterion"] for point in weights["curve"]) for weights in tuned]
        variant = tuned[0]["variant"]
        lines.append(
            f"Other weights: {len(tuned)} seed{'s' * (len(tuned) > 1)}, rate {variant['rate']:g}, "
            f"{variant['epochs']} epochs; validation BLEU "
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


def _yes(value: bool | None) -> str:
    return "–" if value is None else "yes" if value else "no"


def write(folder: Path) -> None:
    """Write README.md from the results of a folder."""
    write_atomic(folder / "README.md", render(Results(folder / RESULTS)))


def main(arguments: Sequence[str] | None = None) -> None:
    """Score outputs, and write the report."""
    parser = argparse.ArgumentParser(
        prog="python -m npad.experiments.steering_report",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument(
        "--set", nargs=2, type=Path, action="append", default=[], metavar=("OUTPUTS", "DATA")
    )
    parser.add_argument("--from", dest="source", default="en", help="source language")
    parser.add_argument("--to", dest="target", help="target language")
    options = parser.parse_args(arguments)
    try:
        options.folder.mkdir(parents=True, exist_ok=True)
        results = Results(options.folder / RESULTS)
        for outputs, data in options.set:
            score_set(results, outputs, ParallelText.find(data, options.source, options.target))
        write(options.folder)
    except NpadError as error:
        raise SystemExit(f"error: {error}") from error


def score_set(results: Results, outputs: Path, text: ParallelText) -> None:
    """Score the outputs of a data set by its references."""
    score_outputs(results, outputs, {name: pairs.references for name, pairs in text.sets().items()})


if __name__ == "__main__":
    main()
