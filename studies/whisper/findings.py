"""What the report on Whisper concludes, stated from its numbers.

A difference is clear if its 95 % interval, a paired bootstrap over strings, excludes zero.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from npad.evaluate.bootstrap import Difference
from npad.metrics.metric import TIE
from npad.reproduce.markdown import markdown_table
from studies.hypotheses import Candidate
from studies.whisper.results import SELECTORS, Results, System

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
