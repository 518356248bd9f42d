"""The report on Whisper: word error rates of the decoders that were run.

python -m studies.whisper.report FILE.jsonl.gz FOLDER

writes FOLDER/README.md and FOLDER/wer.png, and the hypotheses as FOLDER/hypotheses.jsonl.xz.
A difference is clear if its 95 % interval, a paired bootstrap over strings, excludes zero.
"""

from __future__ import annotations

import json
import lzma
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from npad.evaluate.bootstrap import Difference
from npad.evaluate.plots import Curve, Panel, Point, curves
from npad.metrics.metric import TIE
from npad.metrics.wer import Wer
from npad.reproduce.markdown import document, markdown_table
from npad.storage.atomic import write_atomic
from studies.hypotheses import Candidate
from studies.whisper.experiment import Entry
from studies.whisper.results import SELECTORS, SYSTEMS, Results, System, read_entries, selected

COLOURS = {"beam": "beam", "recipe": "diverse", "sampling": "sampling", "npad": "NPAD"}
SHADES = (1.0, 0.65, 0.35)  # of a decoder's colour, by selector
WER_AXIS = "word error rate, % (lower is better)"
LEGEND = """\
WER is the word error rate in per cent, on English normalised by `npad.text.english`; NLL is the
mean −log p of the selected output under the clean model, end token included; both are means over
the seeds. `calls` are rows through one step of the model per recording; `re-scored` the same for
re-scoring by the clean model, which scores all candidates here because Whisper's search forbids
tokens; `seconds` is the wall time for a set, encoder included, with the first seed. A decoder with
n rows has a beam of n, n samples or n chains, greedy search's output among them. Selectors choose
among the same candidates. Whisper's recipe is a beam of n; if the mean log-probability is below −1
or the text compresses more than 2.4 times, it tries the best of n samples at T = 0.2, 0.4, … 1.0
until one passes.
"""


OPPONENTS = {
    "greedy": "greedy search",
    "sampling": "greedy search and samples at T = 0.5",
    "beam": "a beam",
    "recipe": "Whisper's recipe",
}


class Comparison(NamedTuple):
    """NPAD and an opponent of as many rows, with the same selector where it has one."""

    system: System
    opponent: System
    difference: Difference  # in word error rate: NPAD minus the opponent

    @property
    def outcome(self) -> str:
        return outcome(self.difference)


def outcome(difference: Difference) -> str:
    """Return whether a difference in word error rate is better, worse or unclear."""
    return "better" if difference.high < 0 else "worse" if difference.low > 0 else "unclear"


def comparisons(results: Results) -> Iterator[Comparison]:
    """Yield NPAD against each opponent, at every number of rows and by every selector."""
    for system in results.systems:
        for name in OPPONENTS if system.name == "npad" else ():
            rows = 1 if name == "greedy" else system.rows
            if opponent := results.find(name, rows, system.selector):
                yield Comparison(system, opponent, results.compare(system, opponent))


def findings(results: Results) -> str:
    """Return the conclusions: how sure the model is, what noise adds, and what wider beams add."""
    compared = list(comparisons(results))
    if not compared:
        return "NPAD did not run.\n"
    parts = [
        _sureness(results),
        *(_against(name, [c for c in compared if c.opponent.name == name]) for name in OPPONENTS),
        _wider_beams(results),
    ]
    lines = "".join(f"- {part}\n" for part in parts if part)
    header = ["NPAD, rows, selector", *(f"− {name}" for name in OPPONENTS.values())]
    return f"{lines}\n{markdown_table(header, _rows(compared))}"


def _rows(compared: list[Comparison]) -> Iterator[list[str]]:
    for system in dict.fromkeys(c.system for c in compared):
        cells = {
            c.opponent.name: f"{c.difference} {c.outcome}" for c in compared if c.system == system
        }
        yield [f"{system.rows}, {system.selector}", *(cells.get(name, "–") for name in OPPONENTS)]


def _against(name: str, compared: list[Comparison]) -> str:
    """Say how NPAD fares against an opponent, by log p and over all selectors."""
    if not compared:
        return ""
    by_log_p = [c for c in compared if c.system.selector == "log p"]
    values = ", ".join(f"{c.difference} with {c.system.rows}" for c in by_log_p)
    size = "" if name == "greedy" else " of as many rows"
    counts = {word: sum(c.outcome == word for c in compared) for word in ("better", "worse")}
    return (
        f"**{_in_words([c.outcome for c in by_log_p])} {OPPONENTS[name]}**{size}, by log p: "
        f"{values} chains. With all selectors it is clearly better in {counts['better']} and "
        f"clearly worse in {counts['worse']} of {len(compared)} comparisons."
    )


def _in_words(outcomes: list[str]) -> str:
    kinds = set(outcomes)
    if kinds == {"better"}:
        return "NPAD makes fewer errors than"
    if kinds == {"worse"}:
        return "NPAD makes more errors than"
    if kinds == {"unclear"}:
        return "NPAD does not clearly differ from"
    if "worse" not in kinds:
        return "NPAD is level with or better than"
    if "better" not in kinds:
        return "NPAD is level with or worse than"
    return "NPAD is sometimes better and sometimes worse than"


def _sureness(results: Results) -> str:
    """Say how probable greedy outputs are, and how often anything found is more probable."""
    parts = []
    for set_name in results.sets:
        record = results.records["greedy", 1, 0, set_name]
        greedy = [Candidate(*ranked[0]) for ranked in record["candidates"]]
        best = [candidate.log_prob if candidate.finished else -np.inf for candidate in greedy]
        for (*_, decoded_set), record in results.records.items():
            if decoded_set == set_name:
                for i, ranked in enumerate(record["candidates"]):
                    scores = [c.log_prob for c in (Candidate(*e) for e in ranked) if c.finished]
                    best[i] = max([best[i], *scores])
        beaten = [
            top > candidate.log_prob + TIE or not candidate.finished
            for candidate, top in zip(greedy, best, strict=True)
        ]
        tokens = sum(candidate.length for candidate in greedy)
        share = np.exp(sum(candidate.log_prob for candidate in greedy) / tokens)
        parts.append(f"{set_name}: {share:.0%} and {1 - np.mean(beaten):.0%}")
    return (
        "**How sure it is**: the probability it gives a token of its greedy output, in the "
        "geometric mean, and the share of recordings for which no decoder here found a more "
        f"probable output: {'; '.join(parts)}."
    )


def _wider_beams(results: Results) -> str:
    """Say what a wider beam adds to the narrowest, by each selector."""
    parts = []
    for selector in SELECTORS:
        beams = [s for s in results.systems if (s.name, s.selector) == ("beam", selector)]
        if len(beams) > 1:
            difference = results.compare(beams[-1], beams[0])
            parts.append(f"{selector} {difference} {outcome(difference)}")
    if not parts:
        return ""
    widths = f"a beam of {beams[-1].rows} minus one of {beams[0].rows}"
    return f"**What a wider beam adds**, {widths}: {'; '.join(parts)}."


def render(results: Results) -> str:
    """Return the report as Markdown."""
    about = results.about
    command = about.get("command", "python -m npad.experiments.whisper")  # as it was once called
    strings, levels = about.get("test", "?"), ", ".join(results.sets)
    lead = (
        f"{strings} strings of 3 to 8 digits by one speaker (Free Spoken Digit Dataset, test "
        f"takes), with white noise at {levels}; decoded on {about.get('device', '?')}, torch "
        f"{about.get('torch', '?')}, in float32. Made by `{command}` and "
        f"`{command}.report`, from `hypotheses.jsonl.xz`.\n"
    )
    sections = {
        "Does noise help?": "Differences are in word error rate, all noise levels together, "
        "negative is better; with 95 % intervals of a paired bootstrap over strings, 1,000 test "
        "sets, of the mean over the seeds. A difference is clear if its interval excludes zero; by "
        f"chance alone, two of forty would.\n\n{findings(results)}",
        "Word error rate, all noise levels": f"{_overview(results)}\n"
        "![word error rate and NLL against rows](wer.png)\n",
        "All decoders": "\n".join(
            [LEGEND, *(f"### {on}\n\n{_table(results, on)}" for on in results.sets)]
        ),
        "Differences in word error rate": "As above, of every row against two.\n\n"
        f"{_differences(results)}",
        "Calibration": f"NPAD-5 on {about.get('validation', '?')} other strings at all noise "
        f"levels; the noise of the lowest NLL was chosen: {_chosen(results)}. Its size is relative "
        f"to that of the states it perturbs.\n\n{_calibration(results)}",
    }
    title = f"Speech: {about.get('model', '?')} on noisy strings of digits"
    return document(title, lead, sections)


def _overview(results: Results) -> str:
    """Format the word error rates on all sets together, a column a selector."""
    rows = []
    for name, size in dict.fromkeys((system.name, system.rows) for system in results.systems):
        found = [results.find(name, size, selector) for selector in SELECTORS]
        columns = [f"{_rate(results, s).y:.2f}" if s else "–" for s in dict.fromkeys(found)]
        records = [results.records[name, size, 0, on] for on in results.sets]
        recordings = sum(len(record["references"]) for record in records)
        calls = sum(record["calls"] + record["rescored"] for record in records) / recordings
        columns += ["–"] * (len(SELECTORS) - len(columns))
        rows.append([SYSTEMS[name], f"{size}", *columns, f"{calls:.0f}"])
    return markdown_table(["decoder", "rows", *SELECTORS, "calls and re-scored"], rows)


def _table(results: Results, on: str) -> str:
    rows = []
    for system in results.systems:
        seeds = results.seeds(system)
        found = [results.of(system, seed, on) for seed in seeds]
        rates = [Wer().score(each.errors) for each in found]
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
    return markdown_table(
        ["decoder, rows, selector", "WER", "NLL", "calls", "re-scored", "seconds"], rows
    )


def _baselines(results: Results) -> Iterator[System]:
    for name in ("greedy", "beam"):
        yield from [s for s in results.systems if s.name == name and s.selector == "log p"][:1]


def _differences(results: Results) -> str:
    baselines = list(_baselines(results))
    rows = [
        [str(s), *("" if s == b else str(results.compare(s, b)) for b in baselines)]
        for s in results.systems
    ]
    return markdown_table(["decoder, rows, selector", *(f"− {b}" for b in baselines)], rows)


def _chosen(results: Results) -> str:
    nll = {record["system"]: selected(record, "log p").nll for record in results.calibration}
    return min(nll, key=nll.__getitem__).removeprefix("npad ") if nll else "none"


def _calibration(results: Results) -> str:
    rows = [
        [record["system"].removeprefix("npad "), *_calibrated(record)]
        for record in results.calibration
    ]
    return markdown_table(["site, schedule, σ₀", "NLL", "WER by log p", "WER by MBR"], rows)


def _calibrated(record: Entry) -> list[str]:
    probable, risk = selected(record, "log p"), selected(record, "MBR by WER")
    rates = [Wer().score(found.errors) for found in (probable, risk)]
    return [f"{probable.nll:.4f}", *(f"{rate:.2f}" for rate in rates)]


def panels(results: Results) -> list[Panel]:
    """Return word error rate and NLL against rows, all sets together."""
    greedy = next(_baselines(results))
    rate: dict[str, Curve] = {}
    nll: dict[str, Curve] = {}
    for name in COLOURS:
        for selector, shade in zip(SELECTORS, SHADES, strict=True):
            found = [s for s in results.systems if (s.name, s.selector) == (name, selector)]
            if found:
                label = str(found[0]._replace(rows=1))
                rate[label] = Curve(COLOURS[name], [_rate(results, s) for s in found], shade)
            if found and selector == "log p":
                nll[label] = Curve(COLOURS[name], [_nll(results, s) for s in found])
    return [
        Panel("rows", WER_AXIS, rate, _level(greedy, results, _rate), log=True),
        Panel("rows", "NLL (lower is better)", nll, _level(greedy, results, _nll), log=True),
    ]


def _level(greedy: System, results: Results, measure: Any) -> dict[str, Curve]:
    return {"greedy": Curve("greedy", [measure(results, greedy)])}


def _rate(results: Results, system: System) -> Point:
    rates = [Wer().score(errors) for errors in results.errors(system)]
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
    results = Results(entries := read_entries(file))
    folder.mkdir(parents=True, exist_ok=True)
    copy = folder / "hypotheses.jsonl.xz"
    if file.resolve() != copy.resolve():
        lines = "".join(f"{json.dumps(entry, ensure_ascii=False)}\n" for entry in entries)
        write_atomic(copy, lzma.compress(lines.encode(), preset=9 | lzma.PRESET_EXTREME))
    title = f"{results.about.get('model', '?')}, noisy strings of digits, all noise levels"
    curves(panels(results), folder / "wer.png", title, "error bars: one deviation over the seeds")
    write_atomic(folder / "README.md", render(results))


if __name__ == "__main__":
    write(Path(sys.argv[1]), Path(sys.argv[2]))
