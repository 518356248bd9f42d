"""The report on speech: word error rates of the decoders that `npad.experiments.whisper` ran.

python -m npad.experiments.whisper_report FILE.jsonl.gz FOLDER

writes FOLDER/README.md and FOLDER/wer.png, and copies FILE to FOLDER/hypotheses.jsonl.gz.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from npad.errors import InvalidInput
from npad.evaluate.bootstrap import Difference
from npad.evaluate.plots import Curve, Panel, Point, curves
from npad.evaluate.wer import paired_wer, wer, wer_counts
from npad.experiments.tables import markdown
from npad.experiments.whisper import VALIDATION, Record, read_records
from npad.search.word_errors import Counts, word_errors
from npad.storage.atomic import write_atomic
from npad.text.english import spoken_words

SELECTORS = ("log p", "length-normalised", "MBR by WER")
SYSTEMS = {
    "greedy": "greedy",
    "beam": "beam",
    "recipe": "Whisper's recipe",
    "sampling": "greedy + samples, T = 0.5",
    "npad": "NPAD over greedy",
}
SELECTED = ("beam", "sampling", "npad")  # the decoders with several candidates
COLOURS = {"beam": "beam", "recipe": "diverse", "sampling": "sampling", "npad": "NPAD"}
LEGEND = """\
WER is the word error rate in per cent, of English normalised as `npad.text.english` does; NLL the
mean −log p of the selected output under the clean model, its end included; both are means over the
seeds. `calls` are rows through one step of the model, a recording; `re-scored` the same by the
clean judge, which scores all candidates here, since Whisper's search forbids tokens;
`seconds` the wall time of a set, encoder included, with the first seed. A decoder of
n rows has a beam of n, n samples or n chains, greedy search's output among them. Selectors choose
among the same candidates. Whisper's recipe is a beam of n, then, where the mean log-probability is
below −1 or the text compresses more than 2.4 times, the best of n samples at T = 0.2, 0.4, … 1.0,
until one passes.
"""


class System(NamedTuple):
    """A row of the report: a decoder, its rows, and what selects among its candidates."""

    name: str
    rows: int
    selector: str

    def __str__(self) -> str:
        rows = f", {self.rows}" if self.rows > 1 else ""
        selector = f", {self.selector}" if self.name in SELECTED else ""
        return f"{SYSTEMS[self.name]}{rows}{selector}"


class Selected(NamedTuple):
    """The outputs that a selector chose: word errors and −log p of every recording."""

    counts: Counts  # [recordings, 2], from `wer_counts`
    nll: float


def choose(candidates: Sequence[Sequence[Any]], selector: str) -> int:
    """Return the place of the best candidate; finished ones rank before those that were cut."""
    if selector == "log p":
        scores = [log_prob for _, log_prob, *_ in candidates]
    elif selector == "length-normalised":
        scores = [log_prob / max(1, length) for _, log_prob, length, *_ in candidates]
    else:
        words = [spoken_words(text) for text, *_ in candidates]
        n = len(words)
        errors = word_errors([w for w in words for _ in range(n)], words * n).reshape(n, n)
        weights = np.array([count for *_, count, _ in candidates])
        rates = errors / np.array([max(1, len(w)) for w in words])
        scores = (-(rates @ weights)).round(9).tolist()
    order = [(finished, score) for score, (*_, finished) in zip(scores, candidates, strict=True)]
    return order.index(max(order))


def selected(record: Record, selector: str) -> Selected:
    """Return what a selector chooses from a record."""
    places = [choose(candidates, selector) for candidates in record["candidates"]]
    best = [found[i] for found, i in zip(record["candidates"], places, strict=True)]
    counts = wer_counts([text for text, *_ in best], record["references"])
    return Selected(counts, -float(np.mean([log_prob for _, log_prob, *_ in best])))


class Results:
    """The records of an experiment, by system and set.

    Raises:
        InvalidInput: there are none.
    """

    def __init__(self, records: Sequence[Record]) -> None:
        self.about: dict[str, Any] = next((r["about"] for r in records if "about" in r), {})
        self.calibration = [r for r in records if r.get("set") == VALIDATION]
        tested = [r for r in records if "system" in r and r["set"] != VALIDATION]
        self.records = {(r["system"], r["rows"], r["seed"], r["set"]): r for r in tested}
        if not self.records:
            raise InvalidInput("there are no results of test recordings; run the experiment first")
        self.sets = list(dict.fromkeys(r["set"] for r in tested))
        self._selected: dict[tuple[Any, ...], Selected] = {}

    @cached_property
    def systems(self) -> list[System]:
        """All decoders that ran on every set, with their selectors."""
        keys = {(name, rows) for name, rows, *_ in self.records}
        complete = [
            (name, rows)
            for name, rows in sorted(keys, key=lambda key: (key[1], list(SYSTEMS).index(key[0])))
            if all((name, rows, 0, on) in self.records for on in self.sets)
        ]
        return [
            System(name, rows, selector)
            for name, rows in complete
            for selector in (SELECTORS if name in SELECTED else SELECTORS[:1])
        ]

    def seeds(self, system: System) -> list[int]:
        """Return the seeds with which a decoder ran on every set."""
        seeds = {seed for name, rows, seed, _ in self.records if (name, rows) == system[:2]}
        return sorted(
            seed
            for seed in seeds
            if all((*system[:2], seed, on) in self.records for on in self.sets)
        )

    def of(self, system: System, seed: int, on: str) -> Selected:
        """Return what a system chose on a set."""
        key = (*system, seed, on)
        if key not in self._selected:
            record = self.records[system.name, system.rows, seed, on]
            # The recipe chooses by itself.
            self._selected[key] = selected(record, system.selector)
        return self._selected[key]

    def counts(self, system: System) -> list[Counts]:
        """Return the word errors of each string, on all sets together, for each seed.

        The sets are the same strings with more or less noise, so a bootstrap draws all of a
        string's recordings at once.
        """
        return [
            np.sum([self.of(system, seed, on).counts for on in self.sets], axis=0)
            for seed in self.seeds(system)
        ]


def render(results: Results) -> str:
    """Return the report as Markdown."""
    about = results.about
    strings, levels = about.get("test", "?"), ", ".join(results.sets)
    parts = [
        f"# Speech: {about.get('model', '?')} on noisy strings of digits\n",
        f"{strings} strings of 3 to 8 digits by one speaker (Free Spoken Digit Dataset, test "
        f"takes), with white noise at {levels}; decoded on {about.get('device', '?')}, torch "
        f"{about.get('torch', '?')}, in float32. Made by `python -m npad.experiments.whisper` and "
        "`python -m npad.experiments.whisper_report`, from `hypotheses.jsonl.gz`.\n",
        "## Does noise help?\n",
        _findings(results),
        "![word error rate and NLL against rows](wer.png)\n",
        "## All decoders\n",
        LEGEND,
        *(f"### {on}\n\n{_table(results, on)}" for on in results.sets),
        "## Differences in word error rate\n",
        "All noise levels together; 95 % intervals of a paired bootstrap over strings, 1,000 test "
        "sets, of the mean over the seeds. Negative is better.\n",
        _differences(results),
        "## Calibration\n",
        f"NPAD-5 on {about.get('validation', '?')} other strings at all noise levels; the noise of "
        "the lowest NLL was chosen. Its size is relative to that of the states it perturbs.\n",
        _calibration(results),
    ]
    return "\n".join(parts)


def _table(results: Results, on: str) -> str:
    rows = []
    for system in results.systems:
        seeds = results.seeds(system)
        found = [results.of(system, seed, on) for seed in seeds]
        rates = [wer(each.counts) for each in found]
        spread = f" ± {np.std(rates, ddof=1):.2f}" if len(rates) > 1 else ""
        record = results.records[system.name, system.rows, seeds[0], on]
        count = len(record["references"])
        rows.append(
            [
                str(system),
                f"{np.mean(rates):.2f}{spread}",
                f"{np.mean([each.nll for each in found]):.3f}",
                f"{record['calls'] / count:.1f}",
                f"{record['rescored'] / count:.1f}",
                f"{record['seconds']:.1f}",
            ]
        )
    return markdown(
        ["decoder, rows, selector", "WER", "NLL", "calls", "re-scored", "seconds"], rows
    )


def _compared(results: Results, system: System, baseline: System) -> Difference:
    first, second = results.counts(system), results.counts(baseline)
    weights = [1 / len(first)] * len(first) + [-1 / len(second)] * len(second)
    return paired_wer([*first, *second], weights)


def _baselines(results: Results) -> Iterator[System]:
    for name in ("greedy", "beam"):
        yield from [s for s in results.systems if s.name == name and s.selector == "log p"][:1]


def _differences(results: Results) -> str:
    baselines = list(_baselines(results))
    rows = [
        [str(s), *("" if s == b else str(_compared(results, s, b)) for b in baselines)]
        for s in results.systems
    ]
    return markdown(["decoder, rows, selector", *(f"less {b}" for b in baselines)], rows)


def _findings(results: Results) -> str:
    """Return whether the word error rate of NPAD differs from those of the baselines."""
    lines = []
    for system in results.systems:
        for baseline in _baselines(results) if system.name == "npad" else ():
            difference = _compared(results, system, baseline)
            better, worse = difference.high < 0, difference.low > 0
            verdict = "better" if better else "worse" if worse else "no clear difference"
            lines.append(f"- {system}, less {baseline}: {difference}: {verdict}.\n")
    return "".join(lines) or "NPAD did not run.\n"


def _calibration(results: Results) -> str:
    rows = [
        [record["system"].removeprefix("npad "), *_calibrated(record)]
        for record in results.calibration
    ]
    return markdown(["site, schedule, σ₀", "NLL", "WER by log p", "WER by MBR"], rows)


def _calibrated(record: Record) -> list[str]:
    probable, risk = selected(record, "log p"), selected(record, "MBR by WER")
    return [f"{probable.nll:.4f}", f"{wer(probable.counts):.2f}", f"{wer(risk.counts):.2f}"]


def panels(results: Results) -> list[Panel]:
    """Return word error rate and NLL against rows, all sets together."""
    greedy = next(_baselines(results))
    rate: dict[str, Curve] = {}
    nll: dict[str, Curve] = {}
    for name in COLOURS:
        for selector, shade in (("log p", 1.0), ("MBR by WER", 0.5)):
            found = [s for s in results.systems if (s.name, s.selector) == (name, selector)]
            if found:
                label = str(found[0]._replace(rows=1))
                rate[label] = Curve(COLOURS[name], [_rate(results, s) for s in found], shade)
            if found and selector == "log p":
                nll[label] = Curve(COLOURS[name], [_nll(results, s) for s in found])
    return [
        Panel("rows", "word error rate, % (lower is better)", rate, _level(greedy, results, _rate)),
        Panel("rows", "NLL (lower is better)", nll, _level(greedy, results, _nll)),
    ]


def _level(greedy: System, results: Results, measure: Any) -> dict[str, Curve]:
    return {"greedy": Curve("greedy", [measure(results, greedy)])}


def _rate(results: Results, system: System) -> Point:
    rates = [wer(counts) for counts in results.counts(system)]
    spread = float(np.std(rates, ddof=1)) if len(rates) > 1 else 0.0
    return Point(system.rows, float(np.mean(rates)), spread)


def _nll(results: Results, system: System) -> Point:
    values = [
        np.mean([results.of(system, seed, on).nll for on in results.sets])
        for seed in results.seeds(system)
    ]
    return Point(system.rows, float(np.mean(values)))


def write(file: Path, folder: Path) -> None:
    """Write the report and its plot, and copy the hypotheses beside them."""
    results = Results(read_records(file))
    folder.mkdir(parents=True, exist_ok=True)
    copy = folder / "hypotheses.jsonl.gz"
    if file.resolve() != copy.resolve():
        shutil.copyfile(file, copy)
    title = f"{results.about.get('model', '?')}, noisy strings of digits, all noise levels"
    curves(panels(results), folder / "wer.png", title, "error bars: one deviation over the seeds")
    write_atomic(folder / "README.md", render(results))


if __name__ == "__main__":
    write(Path(sys.argv[1]), Path(sys.argv[2]))
