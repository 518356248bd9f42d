"""What the figures on steering say: differences between systems, and what limits them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from npad.reproduce.markdown import markdown_table
from studies.steering.aims import SetResults, samples
from studies.steering.rows import SIZES

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
