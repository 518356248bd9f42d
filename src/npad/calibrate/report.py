"""What `npad calibrate` found: a record for JSON, a table, sentences and a plot."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from npad.calibrate.calibrate import Calibration
from npad.engine.cost import SHORT_UNITS
from npad.evaluate.bootstrap import RESAMPLES, SIGNIFICANT, Comparison, Difference
from npad.evaluate.plots import Curve, Panel, Point, curves

# The colour and shade of each family in the plot.
FAMILIES = {
    "greedy": ("greedy", 1.0),
    "beam": ("beam", 1.0),
    "diverse": ("diverse", 1.0),
    "stochastic beam": ("diverse", 0.6),
    "sampling": ("sampling", 1.0),
    "arithmetic": ("sampling", 0.7),
    "shared sampling": ("sampling", 0.85),
    "epsilon": ("sampling", 0.55),
    "steered": ("steered", 1.0),
    "NPAD": ("NPAD", 1.0),
    "NPAD over beam": ("NPAD over beam", 1.0),
    "NPAD over steered": ("steered", 0.6),
}
LEGEND = """\
*            on the frontier: none of the last round is as good for less
search       score and cost per sentence on the sentences of the search
held out     the same on sentences that the search has not seen
lead         recommended decoder minus this one, held out, with {level} interval
p            of that difference, two-sided: paired bootstrap, corrected by Holm
"""
FRACTIONS = {3 / 4: "three quarters", 2 / 3: "two thirds", 1 / 2: "half", 2 / 5: "two fifths"}
FRACTIONS |= {1 / 3: "a third", 1 / 4: "a quarter", 1 / 5: "a fifth", 1 / 10: "a tenth"}
LEVEL = "95 %"

Data = dict[str, Any]  # a calibration as JSON


def as_record(
    found: Calibration,
    model: str,
    options: Mapping[str, str],
    command: Mapping[str, str],
    made_by: str = "",
) -> Data:
    """Return a calibration as plain data.

    Args:
        found: the calibration.
        model: the model's name.
        options: the decoders' options on the command line, by name.
        command: command lines of the recommended decoder, "best", and of a "cheaper" one.
        made_by: the command line of the search.
    """
    sign = -1 if found.metric.lower_is_better else 1
    latest: dict[str, Data] = {}
    for rung in found.rungs:
        for name, point in rung.points.items():
            latest[name] = {
                "name": name,
                "family": found.candidates[name].family,
                "options": options[name],
                "sentences": rung.sentences,
                "score": sign * point.quality,
                "cost": point.cost,
            }
    for name, row in latest.items():
        held = found.held_out.get(name)
        row["held_out"] = held and {"score": sign * held.quality, "cost": held.cost}
        if held and name in found.times:
            row["held_out"]["seconds"] = found.times[name].seconds
        for key, comparisons in (
            ("on_selection", found.on_selection),
            ("on_held_out", found.on_held_out),
        ):
            row[key] = asdict(comparisons[name]) if name in comparisons else None
    return {
        "made_by": made_by,
        "model": model,
        "metric": found.metric.title,
        "lower_is_better": found.metric.lower_is_better,
        "unit": found.options.unit,
        "budget": found.options.budget,
        "measured": asdict(found.times[found.winner]) if found.times else None,
        "seed": found.options.seed,
        "references": found.references,
        "candidates": len(found.candidates),
        "rungs": [
            {"sentences": rung.sentences, "decoders": len(rung.points)} for rung in found.rungs
        ],
        "sentences": {"search": found.sentences[0], "held_out": found.sentences[1]},
        "frontier": found.frontier,
        "first": found.first,
        "winner": found.winner,
        "cheaper": found.cheaper,
        "command": dict(command),
        "calls": found.calls,
        "seconds": round(found.seconds, 1),
        "decoders": list(latest.values()),
    }


def by_name(data: Data) -> dict[str, Data]:
    """Return the decoders that were measured within the budget."""
    return {row["name"]: row for row in data["decoders"]}


def shown(data: Data) -> list[str]:
    """Return the decoders of the table, cheapest first: the frontier and the families' best."""
    rows = by_name(data)
    sign = 1 if data["lower_is_better"] else -1

    def rank(name: str) -> tuple[int, float, float]:
        row = rows[name]
        return -row["sentences"], sign * row["score"], row["cost"]

    checked = [name for name, row in rows.items() if row["held_out"] is not None]
    best = {rows[name]["family"]: name for name in sorted(checked, key=rank, reverse=True)}
    names = {*data["frontier"], *best.values(), data["winner"]}
    return sorted(names, key=lambda name: (rows[name]["cost"], name))


def header(data: Data) -> list[str]:
    """Return the heads of the table's columns."""
    unit = SHORT_UNITS[data["unit"]]
    metric = data["metric"]
    return ["decoder", f"search: {metric}", unit, f"held out: {metric}", unit, "lead", "p"]


def table_rows(data: Data) -> list[list[str]]:
    """Return the cells of the table, one line per decoder."""
    rows, lines = by_name(data), []
    for name in shown(data):
        row = rows[name]
        held, comparison = row["held_out"], row["on_held_out"]
        cells = [f"{name} *" if name in data["frontier"] else name]
        last = row["sentences"] == data["sentences"]["search"]
        cells += [f"{row['score']:.2f}" if last else "–", f"{row['cost']:.1f}" if last else "–"]
        cells += [f"{held['score']:.2f}", _cost(held)] if held else ["–", "–"]
        if name == data["winner"]:
            cells += ["recommended", ""]
        elif comparison is None:
            cells += ["over budget" if held else "–", ""]
        else:
            cells += [str(Difference(**comparison["difference"])), _p(comparison["adjusted"])]
        lines.append(cells)
    return lines


def _cost(held: Data) -> str:
    """Return a cost on the held-out sentences; of a time, also half the range of its rounds."""
    seconds = held.get("seconds")
    spread = f"±{500 * (max(seconds) - min(seconds)):.1f}" if seconds else ""
    return f"{held['cost']:.1f}{spread}"


def _p(value: float) -> str:
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


def summary(data: Data) -> list[str]:
    """Return what was searched, in sentences."""
    first, *others = data["rungs"]
    rungs = [f"{first['decoders']} on {first['sentences']:,} sentences"]
    rungs += [f"{rung['decoders']} on {rung['sentences']:,}" for rung in others]
    lines = [
        f"Of {data['candidates']} decoders, those within {data['budget']:g} {data['unit']} per "
        f"sentence were compared: {', '.join(rungs)}."
    ]
    if timing := data.get("measured"):
        batch = timing["batch"]
        by = "one by one" if batch == 1 else f"in batches of {batch:,}"
        lines.append(
            f"Times are of sentences decoded {by} on {timing['machine']}; held-out ones are "
            f"medians of {len(timing['seconds'])} rounds in which the decoders took turns."
        )
    if data["references"].startswith("beam"):
        lines.append(
            f"Without references, outputs were compared with those of {data['references']}."
        )
    return lines


def verdict(data: Data) -> list[str]:
    """Return what the recommended decoder beats, in sentences."""
    lines = []
    if data["first"] != data["winner"]:
        cost = by_name(data)[data["first"]]["held_out"]["cost"]
        why = "is beaten"
        if cost > data["budget"]:
            spent = f"{cost:.1f} {data['unit']} per sentence"
            why = f"needs {spent}, over the budget of {data['budget']:g},"
        lines.append(
            f"{data['first']} was best in the search, but {why} on the held-out sentences."
        )
    for key, where, count in (
        ("on_held_out", "held-out sentences", data["sentences"]["held_out"]),
        ("on_selection", "sentences of the search", data["sentences"]["search"]),
    ):
        comparisons = [comparison_of(row[key]) for row in data["decoders"] if row[key] is not None]
        if not comparisons:
            continue
        beaten = sum(comparison.beats for comparison in comparisons)
        better = sum(comparison.is_beaten for comparison in comparisons)
        by = "none beats it" if not better else f"{better} beat it"
        lines.append(
            f"On the {count:,} {where}, the recommended decoder beats {beaten} of "
            f"{len(comparisons)} others beyond chance; {by}."
        )
    return lines


def with_cost(data: Data, name: str) -> str:
    """Return a decoder's name with its cost on the held-out sentences."""
    cost = by_name(data)[name]["held_out"]["cost"]
    return f"{name} ({cost:.1f} {data['unit']} per sentence)"


def cheaper(data: Data) -> str:
    """Return which decoder is as good for less, in a sentence."""
    if data["cheaper"] is None:
        return "No cheaper decoder is as good within chance."
    cost, full = (by_name(data)[data[key]]["held_out"]["cost"] for key in ("cheaper", "winner"))
    share = cost / full
    nearest = min(FRACTIONS, key=lambda fraction: abs(fraction / share - 1))
    part = FRACTIONS[nearest] if abs(nearest / share - 1) < 0.1 else f"{100 * share:.0f} %"
    name = with_cost(data, data["cheaper"])
    part += "" if part == "half" else " of"
    return f"As good within chance, at {part} the cost: {name}"


def method() -> str:
    """Return how differences were tested, in one sentence."""
    return (
        f"Beyond chance: paired bootstrap, {RESAMPLES:,} resampled test sets, two-sided, with "
        f"Holm's correction for the number of comparisons, at {SIGNIFICANT:.0%}."
    )


def comparison_of(data: Data) -> Comparison:
    """Return a comparison from a record."""
    return Comparison(**(data | {"difference": Difference(**data["difference"])}))


def plot(data: Data, path: Path) -> None:
    """Draw quality against cost: every decoder of the last round, and the frontier.

    Raises:
        InvalidInput: matplotlib is not installed.
        StorageError: the file cannot be written.
    """
    rows = by_name(data)
    last = [row for row in rows.values() if row["sentences"] == data["sentences"]["search"]]
    families: dict[str, list[Data]] = {}
    for row in last:
        families.setdefault(row["family"], []).append(row)
    drawn = {
        "frontier": Curve(
            "frontier",
            [Point(rows[name]["cost"], rows[name]["score"]) for name in data["frontier"]],
        )
    }
    for family, members in families.items():
        strategy, shade = FAMILIES.get(family, ("NPAD", 1.0))
        labels = ("recommended" if row["name"] == data["winner"] else "" for row in members)
        places = zip(members, labels, strict=True)
        points = [Point(row["cost"], row["score"], label=label) for row, label in places]
        drawn[family] = Curve(strategy, points, shade, joined=False)
    better = "lower" if data["lower_is_better"] else "higher"
    panel = Panel(
        x=f"{data['unit']} per sentence",
        y=f"{data['metric']} ({better} is better)",
        curves=drawn,
        log=True,
    )
    title = f"{data['model']}, {data['sentences']['search']:,} sentences"
    curves([panel], path, title, f"decoders within {data['budget']:g} {data['unit']} per sentence")
