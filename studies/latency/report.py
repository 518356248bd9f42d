"""The report on quality against time, from what `python -m studies.latency` measured.

python -m studies.latency.report FILE.jsonl FOLDER

writes FOLDER/README.md and FOLDER/frontier.png, and the outputs as FOLDER/outputs.jsonl.xz.
"""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from npad.engine.cost import Timing
from npad.errors import InvalidInput
from npad.evaluate.bootstrap import Difference, paired
from npad.evaluate.plots import Curve, Panel, Point, curves
from npad.metrics.metric import FloatArray, Scorer
from npad.metrics.registry import METRICS, metric_named
from npad.reproduce.markdown import markdown_table
from npad.reproduce.record import Record
from npad.storage.atomic import write_atomic

FAMILIES = {  # the colour and shade of each in the plot
    "greedy": ("greedy", 1.0),
    "beam": ("beam", 0.6),
    "beam ln": ("beam", 1.0),
    "NPAD": ("NPAD", 0.6),
    "NPAD ln": ("NPAD", 1.0),
    "samples": ("sampling", 1.0),
    "steered": ("steered", 1.0),
    "steered NPAD ln": ("steered", 0.6),
}
BEAMS = ("beam", "beam ln")
CHAINS = ("NPAD", "NPAD ln", "steered NPAD ln")
NEAR = {"bleu": 0.1, "wer": 0.3}  # what still counts as equally good
LEGEND = (
    "`ms` are milliseconds per sentence: the median of the rounds in which all decoders took "
    "turns, and in brackets the fastest and the slowest round. `calls` are model calls per "
    "sentence, re-scoring included. Scores of decoders with a seed are means over the seeds; "
    "differences have 95 % intervals of a paired bootstrap over sentences, as the bars in the "
    "plot. `ln`: the candidate with the best length-normalised "
    "log-probability is chosen; without it, the most probable one."
)

BASELINE = "greedy"
BUSY = (
    "Where it says process time, other programs ran on the machine meanwhile. These times are "
    "the processor time of one thread, which still varies with the caches that programs share."
)


class Setting(NamedTuple):
    """Where and how sentences are decoded."""

    machine: str
    batch: int  # sentences at a time

    @property
    def device(self) -> str:
        """What computes, in a word."""
        return "CPU" if " thread" in self.machine else "GPU"

    @property
    def title(self) -> str:
        """The setting as part of a sentence."""
        count = "one sentence" if self.batch == 1 else f"{self.batch} sentences"
        return f"{count} at a time on the {self.device}"


@dataclass(frozen=True)
class Row:
    """A decoder with what was measured."""

    name: str
    family: str
    texts: Sequence[FloatArray]  # statistics of the first metric, by seed
    scores: Mapping[str, float]  # by metric, mean over seeds
    calls: float  # per sentence
    times: Mapping[Setting, Timing]  # where it was timed


class Results:
    """What a record of the study holds."""

    def __init__(self, record: Record) -> None:
        self.about: dict[str, Any] = record.row(("about",))
        self.metric = metric_named(self.about["metrics"][0])
        scorers = [Scorer(METRICS[m], self.about["references"]) for m in self.about["metrics"]]
        timed = {
            Setting(key[1], key[2]): value
            for key, value in record.results.items()
            if key[0] == "times"
        }
        self.settings = sorted(timed, key=lambda setting: (setting.device == "CPU", setting.batch))
        self.rows: dict[str, Row] = {}
        for name, family in self.about["systems"]:
            entries = [
                value
                for key, value in record.results.items()
                if key[0] == "outputs" and key[1] == "test" and key[3] == name
            ]
            if not entries:
                continue
            measured = [
                [s.statistics(e["texts"], e["log_probs"]) for e in entries] for s in scorers
            ]
            calls = [(e["calls"] + e["rescored"]) / len(e["texts"]) for e in entries]
            self.rows[name] = Row(
                name,
                family,
                measured[0],
                {
                    scorer.metric.name: statistics.mean(
                        float(scorer.metric.score(own)) for own in of_metric
                    )
                    for scorer, of_metric in zip(scorers, measured, strict=True)
                },
                statistics.mean(calls),
                {at: _timing(timed[at][name]) for at in self.settings if name in timed[at]},
            )
        self.compare = cache(self._compare)

    @property
    def sign(self) -> int:
        """1 if a higher score is better, else −1."""
        return -1 if self.metric.lower_is_better else 1

    def _compare(self, name: str, other: str) -> Difference:
        """Return the score of a decoder minus that of another."""
        own, others = self.rows[name].texts, self.rows[other].texts
        weights = [1 / len(own)] * len(own) + [-1 / len(others)] * len(others)
        return paired(self.metric, [*own, *others], weights)

    def timed(
        self, families: Sequence[str], setting: Setting, within: float = math.inf
    ) -> dict[str, float]:
        """Return the decoders of some families that take at most so many milliseconds."""
        rows = [row for row in self.rows.values() if row.family in families]
        times = {row.name: row.times[setting].milliseconds for row in rows if setting in row.times}
        return {name: time for name, time in times.items() if time <= within}

    def quality(self, name: str) -> float:
        """Return the score of a decoder; higher is better."""
        return self.sign * self.rows[name].scores[self.metric.name]


def findings(results: Results) -> Iterator[str]:
    """Yield what holds in each setting, in sentences."""
    for setting in results.settings:
        chains, beams = (results.timed(names, setting) for names in (CHAINS, BEAMS))
        if not chains or not beams:
            continue
        npad = max(chains, key=results.quality)
        faster = results.timed(BEAMS, setting, chains[npad])
        better = [name for name in faster if _is_better(results, results.compare(name, npad))]
        beaten = [name for name in faster if _is_better(results, results.compare(npad, name))]
        title = setting.title[:1].upper() + setting.title[1:]
        yield (
            f"**{title}**, the best NPAD is {npad} ({chains[npad]:.1f} ms). "
            f"Of {len(faster)} beams that are as fast, {len(better)} are better and {len(beaten)} "
            "worse by an interval that excludes zero."
        )
        small, limit = next(iter(beams.items()))
        best = max(results.timed(["beam ln"], setting), key=results.quality)
        quick = results.timed(CHAINS, setting, limit)
        if not quick:
            fastest = min(chains, key=lambda name: chains[name])
            yield (
                f"No NPAD is as fast as {small} ({limit:.1f} ms) {setting.title}: the fastest, "
                f"{fastest}, takes {chains[fastest] / limit:.1f} times as long."
            )
            continue
        chosen = max(quick, key=results.quality)
        gap = results.quality(chosen) - results.quality(best)
        near = NEAR.get(results.metric.name, 0)
        yield (
            f"In the time of {small} ({limit:.1f} ms), {setting.title}, {chosen} is best: "
            f"{results.sign * gap:+.2f} {results.metric.title} against {best}, the best "
            f"length-normalised beam, {'within' if gap >= -near else 'not within'} {near}."
        )


def _timing(recorded: Mapping[str, Any]) -> Timing:
    return Timing(**{**recorded, "seconds": tuple(recorded["seconds"])})


def _is_better(results: Results, difference: Difference) -> bool:
    return min(results.sign * difference.low, results.sign * difference.high) > 0


def table(results: Results) -> str:
    """Return the table of all decoders."""
    metrics = [METRICS[name] for name in results.about["metrics"]]
    header = ["decoder", *(m.title for m in metrics), f"{metrics[0].title} − greedy's", "calls"]
    header += [f"{at.device} ms, batch {at.batch}" for at in results.settings]
    return markdown_table(header, _cells(results))


def _cells(results: Results) -> Iterator[list[str]]:
    for name, row in results.rows.items():
        cells = [name, *(f"{row.scores[m]:.2f}" for m in results.about["metrics"])]
        cells.append("" if name == BASELINE else str(results.compare(name, BASELINE)))
        cells.append(f"{row.calls:,.0f}")
        for setting in results.settings:
            timing = row.times.get(setting)
            spread = "" if timing is None else " [{:.1f}, {:.1f}]".format(*timing.spread)
            cells.append("–" if timing is None else f"{timing.milliseconds:.1f}{spread}")
        yield cells


def plot(results: Results, path: Path) -> None:
    """Draw quality against each cost: model calls, and the time at every batch size."""
    better = "lower" if results.metric.lower_is_better else "higher"
    y = f"{results.metric.title} minus greedy search's ({better} is better)"
    panels = [Panel("model calls per sentence", y, _curves(results, None), log=True)]
    for setting in results.settings:
        if setting.batch == 1:
            x = f"milliseconds per sentence, one at a time on the {setting.device}"
        else:
            x = f"sentences per second, {setting.batch} at a time on the {setting.device}"
        panels.append(Panel(x, y, _curves(results, setting), log=True))
    about = results.about
    curves(panels, path, f"{about['model']} on {about['data']}, {about['machine']}")


def _curves(results: Results, setting: Setting | None) -> dict[str, Curve]:
    """Return the curves of all families against a cost: calls if `setting` is None."""
    points: dict[str, list[Point]] = {}
    for name, row in results.rows.items():
        score, cost = results.compare(name, BASELINE), row.calls
        if setting is not None:
            if setting not in row.times:
                continue
            timing = row.times[setting]
            cost = timing.milliseconds if setting.batch == 1 else timing.per_second
        size = "".join(character for character in name.split(",")[0] if character.isdigit())
        spread = (score.high - score.low) / 2
        points.setdefault(row.family, []).append(Point(cost, score.value, spread, size))
    return {
        name: Curve(FAMILIES[name][0], found, FAMILIES[name][1]) for name, found in points.items()
    }


def page(results: Results) -> str:
    """Return the report as a page of Markdown."""
    about, first = results.about, next(iter(results.rows.values()))
    chosen = about["chosen"]
    timed: dict[str, int] = {}
    for setting, timing in first.times.items():
        timed.setdefault(setting.machine, timing.sentences)
    times = "; ".join(f"{count} of them on {machine}" for machine, count in timed.items())
    parts = [
        f"# Quality against time: {about['model']} on {about['data']}",
        f"Quality on the first {len(about['references']):,} sentences of the test set, decoded on "
        f"{about['machine'].partition(',')[0]}; time on the first {times}; torch "
        f"{about['torch']}, npad {about['npad']}. Chosen on the validation set: "
        f"σ₀ = {chosen['sigma']:g}, schedule {chosen['schedule']}, length normalisation "
        f"α = {chosen['alpha']['NPAD']:g} for NPAD and "
        f"{chosen['alpha']['beam']:g} for beams. A time holds for this machine alone.",
        *([BUSY] if any(machine.endswith("process time") for machine in timed) else []),
        "![quality against each cost](frontier.png)",
        "".join(f"- {finding}\n" for finding in findings(results)).strip(),
        table(results).strip(),
        LEGEND,
        "Measured by `python -m studies.latency`, written by `python -m studies.latency.report` "
        "from `outputs.jsonl.xz`.",
    ]
    return "\n\n".join(parts) + "\n"


def write(record: Record, folder: Path) -> None:
    """Write the page and the plot of a record."""
    results = Results(record)
    folder.mkdir(parents=True, exist_ok=True)
    plot(results, folder / "frontier.png")
    write_atomic(folder / "README.md", page(results))


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the report of a record."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if len(given) != 2:
        raise InvalidInput("usage: python -m studies.latency.report FILE.jsonl FOLDER")
    record, folder = Record(Path(given[0])), Path(given[1])
    write(record, folder)
    record.save(folder / "outputs.jsonl.xz")


if __name__ == "__main__":
    main()
