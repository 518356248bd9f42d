"""The report on confidence, from what was measured."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from npad.evaluate.plots import Curve, Panel, Point, curves
from npad.metrics.registry import METRICS
from npad.reproduce.markdown import document, markdown_table
from npad.reproduce.record import Record
from studies.confidence.decoding import ROWS
from studies.confidence.experiment import BUDGETS
from studies.confidence.tasks import SELECTORS

SHORT = {
    "speech": "Speech",
    "en-de": "English to German",
    "en-cs": "English to Czech",
    "en-pt": "English to Portuguese",
    "en-pt medical": "Medical texts",
    "captions": "Captions",
}
TITLES = {
    "speech": "Speech: Whisper tiny.en, noisy strings of digits",
    "en-de": "English to German: the shipped model, Tatoeba",
    "en-cs": "English to Czech: a model of 1,028 units, Multi30k",
    "en-pt": "English to Portuguese: Firefox's model, Tatoeba",
    "en-pt medical": "English to Portuguese: Firefox's model, TICO-19 (choices made on Tatoeba)",
    "captions": "Captions: a model of 256 units, Flickr8k",
}
LABELS = {
    "log-prob-per-token": "log p per token",
    "posterior": "posterior",
    "similarity": "similarity",
    "sure-similarity": "sure similarity",
    "chosen": "**chosen**",
}
SOURCES = {"npad": f"NPAD-{ROWS}", "samples": f"{ROWS} samples"}
COLOURS = {"log-prob-per-token": "greedy", "beam": "beam", "samples": "sampling", "npad": "NPAD"}
AUROC_AIM, HALF_AIM, TASKS_AIM, ESCALATED_AIM = 0.05, 1 / 3, 3, 2

LEAD = """How far can an output be trusted, and does it pay to decode only the doubtful ones again?

```
python -m studies.confidence.decoding de.jsonl.gz --data tatoeba-en-de --model en-de
python -m studies.confidence.decoding cs.jsonl.gz --data multi30k-en-cs --model run --device cuda
python -m studies.confidence.decoding pt.jsonl.gz --data en-pt --model firefox-en-pt
python -m studies.tasks.train store --data DATA --out pictures
python -m studies.tasks.train caption --data DATA --store pictures --out cap --units 256 \\
    --epochs 4 --batch 2600 --rate 0.002 --device cpu
python -m studies.confidence.decoding cap.jsonl.gz --data flickr8k --model cap/model
python -m studies.confidence docs/results/confidence --decoded de.jsonl.gz cs.jsonl.gz \\
    pt.jsonl.gz cap.jsonl.gz --speech docs/results/whisper/hypotheses.jsonl.xz
```

An output of greedy search is *bad* if the transcript has a wrong word, or if its sentence chrF is
in the lowest quarter of the set. A signal is read from that output and from the list of another
decoder: a beam, samples (of speech, greedy search's output and 19 samples at T = 0.5; else T = 1)
or chains of NPAD, all of about as many model calls. The signal of each kind, its weights, and the
*chosen* one, which may be log p per token, are those whose map to quality has the lowest squared
error on held-out folds of validation data; all figures are of test data. Brackets hold 95 %
intervals of a paired bootstrap; recordings of the same string are drawn together.

Model calls include re-scoring. For speech they were not recorded by recording: those of a set are
shared among its recordings by the length of the longest candidate. English to Czech was decoded on
a GPU, where up to seven idle steps of a search count and re-scoring is as many calls as the chains.
The quality of a caption is its chrF against the nearest of five references, which `npad
fit-confidence` expects by default; CIDEr-D is not a score of 0 to 100, and weighs words by the test
set. The model of captions reads the features of a frozen network. It is smaller and was trained
for less long than that of [the report on captions](../caption/README.md) ([log](captions.log)).
"""


def task_names(record: Record) -> list[str]:
    """Return the tasks that were measured, in the order of the report."""
    found = {key[0] for key in record.results}
    return [name for name in TITLES if name in found]


def render(record: Record) -> str:
    """Return the report."""
    names = task_names(record)
    sections = {"Results": _findings(record, names)}
    for name in names:
        sections[TITLES[name]] = _task(record, name)
    sections["Risk by coverage"] = (
        "The share of bad outputs among those that one keeps, the most certain first; each list "
        "with its chosen signal.\n\n![risk by coverage](risk.png)\n"
    )
    worse = [name for name in names if _loses_to_a_beam(record, name)]
    sections["Quality by calls"] = (
        "Beams by log p, and greedy search whose least certain outputs, by log p per token, a beam "
        f"of {ROWS} decodes again. On {len(worse)} of {len(names)} tasks "
        f"({', '.join(worse) or 'none'}), a beam of 5 is better than that at up to its calls."
        "\n\n![quality by calls](calls.png)\n"
    )
    return document("Confidence", LEAD, sections)


def signals_of(record: Record, name: str) -> dict[str, Any]:
    """Return the rows of every source of a task."""
    return {s: record.row((name, "signals", s)) for s in record.row((name, "about"))["sources"]}


def best_source(record: Record, name: str) -> str:
    """Return the source whose chosen signal has the lowest held-out error on validation data."""
    rows = signals_of(record, name)
    return min(rows, key=lambda source: rows[source]["rows"]["chosen"]["held_out_error"])


def _findings(record: Record, names: list[str]) -> str:
    gains, reached, beaten, shares, plain = [], [], [], [], []
    lines = []
    for name in names:
        source = best_source(record, name)
        row = record.row((name, "signals", source))["rows"]["chosen"]
        gain = row["auroc_gain"]
        if gain["value"] >= AUROC_AIM and gain["low"] > 0:
            gains.append(name)
        half = record.row((name, "escalation", 0.5))
        beam = half["rivals"]["beam"]
        spent = half["calls"] / beam["calls"]
        if _no_worse(name, record, beam["difference"]) and spent <= BUDGETS[0]:
            reached.append(name)
        fixed, sign = half["rivals"]["fixed"], METRICS[record.row((name, "about"))["metric"]].sign
        if sign * fixed["score"] >= sign * beam["score"]:
            plain.append(name)
        shares.append(f"{name} {_signed(beam['difference'], 2)} at {spent:.0%} of the calls")
        if _better(name, record, half["rivals"]["fixed"]["difference"]):
            beaten.append(name)
        lines.append(
            f"- **{SHORT[name]}**: `{row['signal']}` of {_source(source)}, AUROC "
            f"{row['auroc']['value']:.3f}, {_signed(gain, 3)} above log p per token. The more "
            f"certain half has {row['half']['value']:.1%} of the bad outputs."
        )
    speech = ""
    if "speech" in names:
        source = best_source(record, "speech")
        value = record.row(("speech", "signals", source))["rows"]["chosen"]["half"]["value"]
        met = "met" if value <= HALF_AIM else "missed"
        aim = "The more certain half holds at most a third of the errors on speech"
        speech = f"- {aim}: {met}, {value:.1%}.\n"
    aims = (
        f"- AUROC at least {AUROC_AIM} above log p per token on three tasks, interval above zero: "
        f"{'met' if len(gains) >= TASKS_AIM else 'missed'}, on {len(gains)} of {len(names)} "
        f"({', '.join(gains) or 'none'}).\n{speech}"
        f"- Escalation reaches a beam of {ROWS}'s quality, by log p, at no more than half of its "
        f"calls on two tasks: {'met' if len(reached) >= ESCALATED_AIM else 'missed'}, on "
        f"{len(reached)} ({', '.join(reached) or 'none'}); on test data, the difference is "
        f"{'; '.join(shares)}. The fixed decoder within the budget reaches it as well on "
        f"{len(plain)} of {len(names)} ({', '.join(plain) or 'none'}).\n"
        f"- Escalation beats the best fixed decoder within the same budget beyond chance on "
        f"{len(beaten)} of {len(names)} tasks ({', '.join(beaten) or 'none'}).\n"
    )
    return "\n".join(lines) + "\n\nThe aims:\n\n" + aims


def _loses_to_a_beam(record: Record, name: str) -> bool:
    """Return whether a beam of 5 is better than all escalated mixes of no more calls."""
    row = record.row((name, "curve"))
    sign = METRICS[record.row((name, "about"))["metric"]].sign
    calls, score = row["fixed"]["beam 5"]
    return all(sign * score > sign * s for c, s in row["escalated"] if c <= calls)


def _no_worse(name: str, record: Record, difference: dict[str, float]) -> bool:
    """Return whether a policy's score is at least as good as a decoder's."""
    lower = METRICS[record.row((name, "about"))["metric"]].lower_is_better
    return difference["value"] <= 0 if lower else difference["value"] >= 0


def _better(name: str, record: Record, difference: dict[str, float]) -> bool:
    lower = METRICS[record.row((name, "about"))["metric"]].lower_is_better
    return difference["high"] < 0 if lower else difference["low"] > 0


def _task(record: Record, name: str) -> str:
    about = record.row((name, "about"))
    metric = METRICS[about["metric"]]
    parts = [
        f"{about['valid']:,} inputs to choose on, {about['test']:,} to report. Scores are "
        f"{metric.title}; {metric.direction}.\n"
    ]
    parts.append(_signals(record, name))
    parts.append(_votes(record, name))
    parts.append(_escalation(record, name))
    return "\n".join(parts)


def _signals(record: Record, name: str) -> str:
    header = [
        "list",
        "calls",
        "signal",
        "AUROC",
        "− log p per token",
        "rank",
        "certain half",
        "error",
    ]
    body = []
    rows: dict[str, Any] = signals_of(record, name)
    plain = next(iter(rows.values()))["rows"]["log-prob-per-token"]
    body.append(["none", "", "log p per token", *_figures(plain)])
    for source, found in rows.items():
        for label, row in found["rows"].items():
            if label != "log-prob-per-token":
                shown = f"`{row['signal']}`"
                shown = f"{LABELS['chosen']}: {shown}" if label == "chosen" else shown
                body.append([_source(source), f"{found['calls']:.0f}", shown, *_figures(row)])
    text = "*Certain half*: its share of the bad outputs. *Error*: calibration error, in quality.\n"
    return f"{markdown_table(header, body)}\n{text}"


def _figures(row: dict[str, Any]) -> list[str]:
    gain = row["auroc_gain"]
    shown = "" if gain["low"] == gain["high"] == 0 else _signed(gain, 3)
    figures = [f"{row['auroc']['value']:.3f}", shown, f"{row['rank']['value']:.3f}"]
    return [*figures, f"{row['half']['value']:.1%}", f"{row['calibration_error']:.2f}"]


def _votes(record: Record, name: str) -> str:
    rows = record.row((name, "votes"))
    header = ["list", *SELECTORS, "chosen vote − log p", "− length-normalised"]
    body = []
    for source, row in rows.items():
        scores = [
            f"**{values['test']:.2f}**" if selector == row["chosen"] else f"{values['test']:.2f}"
            for selector, values in row["scores"].items()
        ]
        gains = [_signed(row["gains"][other], 2) for other in ("log p", "length-normalised")]
        body.append([_source(source), *scores, *gains])
    return f"Selectors; the vote in bold was chosen:\n\n{markdown_table(header, body)}"


def _escalation(record: Record, name: str) -> str:
    header = ["budget", "policy", "again", "calls", "score", "− fixed", "− beam", "− strongest"]
    body, notes = [], []
    for budget in BUDGETS:
        row = record.row((name, "escalation", budget))
        policy = f"{_system(row['first'])}, then {_system(row['second'])} by `{row['signal']}`"
        rivals = row["rivals"].values()
        body.append(
            [
                *[f"{budget:.0%}", policy, f"{row['again']:.0%}", f"{row['calls']:.0f}"],
                *[f"{row['score']:.2f}", *(_signed(r["difference"], 2) for r in rivals)],
            ]
        )
        shown = (
            f"{label} {_system(rival['system'])}, {rival['score']:.2f} for "
            f"{rival['calls']:.0f} calls"
            for label, rival in row["rivals"].items()
        )
        notes.append(f"{budget:.0%}: {'; '.join(shown)}.\n")
    lead = (
        f"Escalation, within a budget as a share of a beam of {ROWS}'s calls. The policy, its "
        "signal and the threshold were chosen on validation data, where the budget was kept; "
        "*fixed* is the best decoder there of no more calls, *strongest* the best of at least a "
        "beam's.\n"
    )
    return f"{lead}\n{markdown_table(header, body)}\n" + "\n".join(notes)


def _system(system: list[str]) -> str:
    decoder, selector = system
    return _source(decoder) if selector == "log p" else f"{_source(decoder)} ({selector})"


def _source(name: str) -> str:
    return SOURCES.get(name, name)


def _signed(value: dict[str, float], digits: int) -> str:
    low, high = (f"{value[end]:+.{digits}f}" for end in ("low", "high"))
    return f"{value['value']:+.{digits}f} [{low}, {high}]"


def draw(record: Record, folder: Path) -> None:
    """Draw risk by coverage, and quality by calls."""
    names = task_names(record)
    panels = [_risk(record, name) for name in names]
    curves(panels, folder / "risk.png", "risk by coverage, test inputs")
    note = "greedy search, then a beam where log p per token is lowest; beams of 5, 10 and 20"
    curves([_by_calls(record, name) for name in names], folder / "calls.png", "", note)


def _risk(record: Record, name: str) -> Panel:
    rows = signals_of(record, name)
    point: Callable[[Any], Point] = lambda values: Point(*values)  # noqa: E731
    plain = next(iter(rows.values()))["rows"]["log-prob-per-token"]["risk"]
    lines = {"log p per token": Curve("greedy", list(map(point, plain)))}
    for source, found in rows.items():
        kind = "beam" if source.startswith("beam") else source
        risk = found["rows"]["chosen"]["risk"]
        lines[f"{kind} list"] = Curve(COLOURS[kind], list(map(point, risk)))
    return Panel(f"coverage, {name}", "share of bad outputs", lines)


def _by_calls(record: Record, name: str) -> Panel:
    row = record.row((name, "curve"))
    metric = METRICS[record.row((name, "about"))["metric"]]
    fixed = [Point(*values) for values in row["fixed"].values()]
    escalated = [Point(*values) for values in row["escalated"]]
    lines = {"greedy and beams": Curve("beam", fixed), "escalation": Curve("NPAD", escalated)}
    return Panel(f"model calls per input, {name}", metric.title, lines, min_span=metric.min_span)
