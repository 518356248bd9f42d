"""Measure signals, votes and escalation: choices on validation inputs, figures on test inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from typing import Any

import numpy as np

from npad.evaluate.bootstrap import Difference, paired
from npad.evaluate.confidence import SignalledOutputs, bad_of, default_signals, isotonic
from npad.evaluate.risk import (
    Figure,
    auroc,
    calibration_error,
    rank_correlation,
    resampled,
    risk_by_coverage,
    share_in_certain_half,
)
from npad.metrics.metric import FloatArray
from npad.reproduce.record import Record
from npad.signals import DEFAULT, SIGNALS, Signal
from npad.specs import spec
from npad.storage.confidence import PLAIN
from studies.confidence.decoding import ROWS
from studies.confidence.tasks import GREEDY, LOG_P, SELECTORS, Outputs, Part, Task

FAMILIES = ("posterior", "similarity", "sure-similarity")
SHARES = tuple(np.arange(0.1, 1.0, 0.1).round(2).tolist())  # of inputs that are decoded again
BEAM = f"beam {ROWS}"
BUDGETS = (0.5, 1.0)  # shares of a beam's model calls
CURVE = 40  # points of a plotted curve


def signalled(part: Part, source: str, signals: tuple[Signal, ...]) -> SignalledOutputs:
    """Return the signals of greedy search's outputs, read from another decoder's lists."""
    answers = [found[0] for found in part.outputs[GREEDY].lists]
    pairs = list(zip(answers, part.outputs[source].lists, strict=True))
    values = {spec(s): np.array([s(answer, found) for answer, found in pairs]) for s in signals}
    quality = part.quality(part.texts(GREEDY))
    return SignalledOutputs(values, quality, bad_of(part.metric, quality))


def measure_source(task: Task, source: str) -> dict[str, Any]:
    """Return the figures of log p, of the best signal of each family, and of the best of all."""
    signals = default_signals(task.test.metric)
    valid, test = (signalled(part, source, signals) for part in (task.valid, task.test))
    errors = valid.held_out_errors
    named = {family: _best(errors, family) for family in FAMILIES}
    named = {PLAIN: PLAIN, **named, "chosen": valid.choice}
    group = task.test.group
    plain = test.signals[PLAIN]
    rows = {}
    for label, name in named.items():
        value = test.signals[name]
        knots = isotonic(valid.signals[name], valid.quality)
        expected = np.interp(value, *knots)
        rows[label] = {
            "signal": name,
            "held_out_error": errors[name],
            "auroc": _figure(auroc, group, (value, test.bad)),
            "auroc_gain": _figure(auroc, group, (value, test.bad), (plain, test.bad)),
            "rank": _figure(rank_correlation, group, (value, test.quality)),
            "half": _figure(share_in_certain_half, group, (value, test.bad)),
            "calibration_error": calibration_error(value, expected, test.quality),
            "risk": _curve(value, test.bad),
        }
    calls = task.test.outputs[source].calls.mean()
    return {"rows": rows, "calls": float(calls), "bad": float(test.bad.mean())}


def _best(errors: Mapping[str, float], family: str) -> str:
    own = [name for name in errors if name.partition("(")[0] == family]
    return min(own, key=errors.__getitem__)


def _figure(
    figure: Figure, group: int, *systems: tuple[FloatArray, FloatArray]
) -> dict[str, float]:
    """Return a figure of a system, or the difference of two, drawing whole groups of inputs."""

    def flat(confidence: FloatArray, values: FloatArray) -> float:
        return figure(confidence.ravel(), values.ravel())

    grouped = [(c.reshape(-1, group), v.reshape(-1, group)) for c, v in systems]
    return asdict(resampled(flat, grouped, (1, -1)[: len(grouped)]))


def _curve(confidence: FloatArray, losses: FloatArray) -> list[tuple[float, float]]:
    risk = risk_by_coverage(confidence, losses)
    places = np.unique(np.linspace(0, len(risk) - 1, CURVE + 1).astype(int)[1:])
    return [((int(i) + 1) / len(risk), float(risk[i])) for i in places]


def measure_votes(task: Task) -> dict[str, Any]:
    """Return the scores of all selectors on the lists of every source."""
    rows = {}
    for source in task.sources:
        scores = {}
        for selector in SELECTORS:
            valid, test = (
                part.metric.score(part.statistics(part.texts(source, selector)))
                for part in (task.valid, task.test)
            )
            scores[selector] = {"valid": valid, "test": test}
        sign = task.test.metric.sign
        votes = [name for name in SELECTORS if name.startswith("vote")]
        chosen = max(votes, key=lambda name: sign * scores[name]["valid"])
        gains = {
            other: asdict(_gain(task.test, (source, chosen), (source, other)))
            for other in ("log p", "length-normalised")
        }
        rows[source] = {"scores": scores, "chosen": chosen, "gains": gains}
    return rows


def _gain(part: Part, first: tuple[str, str], second: tuple[str, str]) -> Difference:
    return compared(part, part.texts(*first), part.texts(*second))


def compared(part: Part, first: list[str], second: list[str]) -> Difference:
    """Return the difference in score of two lists of outputs, drawing whole groups of inputs."""
    rows = [part.statistics(texts) for texts in (first, second)]
    sums = [own.reshape(-1, part.group, own.shape[1]).sum(1) for own in rows]
    return paired(part.metric, sums)


class Escalation:
    """A first decoder for all inputs, and a second one for those it is least sure of.

    Args:
        part: the inputs.
        first: decoder and selector.
        second: decoder and selector.
        signal: how sure the first one is.
    """

    def __init__(
        self,
        part: Part,
        first: tuple[str, str],
        second: tuple[str, str],
        signal: Signal = DEFAULT,
    ) -> None:
        found, places = part.outputs[first[0]], part.outputs[first[0]].chosen(first[1])
        pairs = zip(found.lists, places, strict=True)
        self.confidence = np.array([signal(c[i], c) for c, i in pairs])
        self.texts = part.texts(*first), part.texts(*second)
        self.calls = found.calls, part.outputs[second[0]].calls

    def threshold(self, share: float) -> float:
        """Return the signal that a share of the outputs is below."""
        return float(np.quantile(self.confidence, share))

    def outputs(self, threshold: float) -> list[str]:
        """Return the outputs, of which the doubtful ones are the second decoder's."""
        doubts = self.confidence < threshold
        return [b if doubt else a for a, b, doubt in zip(*self.texts, doubts, strict=True)]

    def cost(self, threshold: float) -> float:
        """Return the mean model calls of an input."""
        first, second = self.calls
        return float((first + (self.confidence < threshold) * second).mean())


def signals_for(outputs: Outputs) -> tuple[str, ...]:
    """Return the signals that can say how sure a first decoder is."""
    listed = any(len(candidates) > 1 for candidates in outputs.lists)
    return (PLAIN, "posterior", "posterior(weights=count)") if listed else (PLAIN,)


def measure_escalation(task: Task, budget: float) -> dict[str, Any]:
    """Return the policy and the fixed decoder that are best on validation within a budget.

    Args:
        task: the task.
        budget: share of the model calls of a beam of `ROWS`.
    """
    valid, test = task.valid, task.test
    sign, limit = test.metric.sign, budget * float(valid.outputs[BEAM].calls.mean())
    scored = {system: _score(valid, valid.texts(*system)) for system in task.fixed}
    costs = {system: float(valid.outputs[system[0]].calls.mean()) for system in task.fixed}
    affordable = [system for system in task.fixed if costs[system] <= limit]
    fixed = max(affordable, key=lambda system: sign * scored[system])
    best: tuple[Any, ...] = (-np.inf,)
    pairs = [(a, b) for a in affordable for b in task.fixed if costs[b] > costs[a]]
    for first, second in pairs:
        for name in signals_for(valid.outputs[first[0]]):
            policy = Escalation(valid, first, second, SIGNALS.parse(name))
            for share in SHARES:
                threshold = policy.threshold(share)
                if policy.cost(threshold) <= limit:
                    score = sign * _score(valid, policy.outputs(threshold))
                    found = score, first, second, share, threshold, name
                    best = max(best, found, key=lambda policy: policy[0])
    _, first, second, share, threshold, name = best
    policy = Escalation(test, first, second, SIGNALS.parse(name))
    outputs = policy.outputs(threshold)
    strongest = max(
        (system for system in task.fixed if costs[system] >= costs[BEAM, LOG_P]),
        key=lambda system: sign * scored[system],
    )
    rivals = {"fixed": fixed, "beam": (BEAM, LOG_P), "strongest": strongest}
    return {
        "first": first,
        "second": second,
        "share": share,
        "signal": name,
        "again": float((policy.confidence < threshold).mean()),
        "score": _score(test, outputs),
        "calls": policy.cost(threshold),
        "rivals": {
            name: {
                "system": system,
                "score": _score(test, test.texts(*system)),
                "calls": float(test.outputs[system[0]].calls.mean()),
                "difference": asdict(compared(test, outputs, test.texts(*system))),
            }
            for name, system in rivals.items()
        },
    }


def measure_curve(task: Task) -> dict[str, Any]:
    """Return score and calls on test inputs: of fixed decoders, and of greedy search escalated."""
    test = task.test
    fixed = [(GREEDY, LOG_P), ("beam 5", LOG_P), ("beam 10", LOG_P), (BEAM, LOG_P)]
    points = {
        system[0]: (float(test.outputs[system[0]].calls.mean()), _score(test, test.texts(*system)))
        for system in fixed
    }
    policy = Escalation(test, (GREEDY, LOG_P), (BEAM, LOG_P))
    escalated = []
    for share in (0.0, *SHARES):
        threshold = policy.threshold(share)
        escalated.append((policy.cost(threshold), _score(test, policy.outputs(threshold))))
    return {"fixed": points, "escalated": escalated}


def _score(part: Part, texts: list[str]) -> float:
    return part.metric.score(part.statistics(texts))


def measure_sizes(task: Task) -> dict[str, Any]:
    """Return what a report says of a task's inputs."""
    sizes = {"valid": len(task.valid.references), "test": len(task.test.references)}
    return sizes | {"metric": task.test.metric.name, "sources": task.sources}


def measure(record: Record, tasks: list[Task], say: Callable[[str], None]) -> None:
    """Measure what the record lacks."""
    for task in tasks:
        record.row((task.name, "about"), partial(measure_sizes, task))
        for source in task.sources:
            row = record.row((task.name, "signals", source), partial(measure_source, task, source))
            say(f"{task.name} {source}: {row['rows']['chosen']['auroc_gain']}")
        record.row((task.name, "votes"), partial(measure_votes, task))
        for budget in BUDGETS:
            key = (task.name, "escalation", budget)
            row = record.row(key, partial(measure_escalation, task, budget))
            say(f"{key}: {row['score']:.2f} for {row['calls']:.0f}")
        record.row((task.name, "curve"), partial(measure_curve, task))
