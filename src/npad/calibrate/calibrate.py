"""Which decoder for a model, a metric and a budget? A search by successive halving.

The sentences are split in two. On the first part, the candidates of `decoder_space.py` are halved
(`halving.py`). On the second, held out, the best ones are compared again: the recommendation is the
candidate that ranks highest on the first part and is not beaten beyond chance on the second.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from npad.calibrate.decoder_space import TEACHER, Candidate, DecoderSpace
from npad.calibrate.halving import Outcome, Rung, frontier, halve, rung_sizes
from npad.calibrate.trials import Measured, Sentences, Trials, Work
from npad.engine.cost import Timing, Unit
from npad.errors import InvalidInput
from npad.evaluate.bootstrap import Comparison, compare_with_all
from npad.metrics.metric import Metric
from npad.metrics.registry import metric_named
from npad.model import name_of
from npad.pipelines.pipeline import Pipeline
from npad.pipelines.translation import Translator, ensure_texts
from npad.reproduce.record import Record
from npad.search.greedy import Greedy
from npad.search.request import Decoding
from npad.validation import MAX_SEED, ensure_callable, ensure_fields

FIRST_RUNG = 24  # fewest sentences that candidates are dropped on


@dataclass(frozen=True)
class Pairs:
    """Sources, and their references where there are any."""

    sources: list[str]
    references: list[str] | None = None

    @classmethod
    def checked(
        cls, sources: Sequence[str], references: Sequence[str] | None, name: str = "sources"
    ) -> Pairs:
        """Return the pairs whose source is not blank.

        Raises:
            InvalidInput: there are none, or the numbers of sources and references differ.
        """
        texts = ensure_texts(sources, "calibrate")
        if references is None:
            pairs = cls([text for text in texts if text.strip()])
        else:
            targets = ensure_texts(references, "calibrate")
            if len(texts) != len(targets):
                raise InvalidInput(
                    f"there are {len(texts):,} {name} and {len(targets):,} references; "
                    "they must be pairs"
                )
            kept = [pair for pair in zip(texts, targets, strict=True) if pair[0].strip()]
            pairs = cls([source for source, _ in kept], [reference for _, reference in kept])
        if not pairs.sources:
            raise InvalidInput(f"there is nothing to calibrate with: the {name} are empty")
        return pairs

    def at(self, places: Sequence[int]) -> Pairs:
        """Return some of the pairs."""
        references = None if self.references is None else [self.references[i] for i in places]
        return Pairs([self.sources[i] for i in places], references)

    def split(self, seed: int) -> tuple[Pairs, Pairs]:
        """Return a random half, and the other one.

        Raises:
            InvalidInput: there is a single pair.
        """
        if len(self.sources) < 2:
            raise InvalidInput(
                "there is one sentence to calibrate with; give two or more, of which half are "
                "held out"
            )
        half = (len(self.sources) + 1) // 2
        places = _shuffled(len(self.sources), seed)
        return self.at(places[:half]), self.at(places[half:])


@dataclass(frozen=True)
class Options:
    """How to calibrate.

    Attributes:
        budget: the largest mean cost of a sentence.
        unit: of the budget: "calls" of the model, re-scoring included, or "milliseconds" on this
            machine.
        metric: the name of a metric; `bleu` by default, `logprob` without references.
        check_all: compare all candidates within the budget on the held-out part, not only the best.
        seed: of the split, of the order of the sentences and of the resampling.
        first_rung: fewest sentences on which candidates are dropped.
        batch: sentences decoded at a time where the unit is milliseconds.
    """

    budget: float = field(metadata={"above": 0})
    unit: Unit = "calls"
    metric: str | None = None
    check_all: bool = False
    seed: int = field(default=0, metadata={"minimum": 0, "maximum": MAX_SEED})
    first_rung: int = field(default=FIRST_RUNG, metadata={"minimum": 1})
    batch: int = field(default=1, metadata={"minimum": 1})

    def __post_init__(self) -> None:
        ensure_fields(self)
        if self.metric is not None:
            metric_named(self.metric)


@dataclass(frozen=True)
class Calibration:
    """The recommended decoder, and what it was compared with.

    Attributes:
        candidates: all candidates, by name.
        metric: the metric.
        options: how it was calibrated.
        references: what outputs were compared with: "given", "beam 40", or "none".
        rungs: the rounds of the search.
        sentences: of the first and of the held-out part.
        held_out: quality and cost on the held-out part, of those decoded there.
        times: where the unit is milliseconds, the times of the same, measured in turn on the first
            held-out sentences; their medians are the costs in `held_out`.
        first: the best within the budget on the first part.
        winner: the recommendation.
        on_selection: the winner beside the others of the last rung.
        on_held_out: the winner beside all others within the budget on the held-out part.
        calls: model calls of all that was decoded.
        seconds: their time.
    """

    candidates: Mapping[str, Candidate]
    metric: Metric
    options: Options
    references: str
    rungs: Sequence[Rung]
    sentences: tuple[int, int]
    held_out: Mapping[str, Outcome]
    times: Mapping[str, Timing]
    first: str
    winner: str
    on_selection: Mapping[str, Comparison]
    on_held_out: Mapping[str, Comparison]
    calls: int
    seconds: float

    @property
    def frontier(self) -> list[str]:
        """The candidates of the last rung that none within the budget beats for less."""
        points = self.rungs[-1].points.items()
        return frontier(
            {name: point for name, point in points if point.cost <= self.options.budget}
        )

    @property
    def cheaper(self) -> str | None:
        """The cheapest candidate compared on both parts, and beaten on neither; None if none is."""
        parts = [part for part in (self.on_selection, self.on_held_out) if part]
        tied = [
            name
            for name in self.on_held_out
            if all(name in part and not part[name].beats for part in parts)
        ]
        costs = {name: self.held_out[name].cost for name in (*tied, self.winner)}
        cheapest = min(costs, key=lambda name: costs[name])
        return None if cheapest == self.winner else cheapest


def calibrate(
    pipeline: Pipeline,
    pairs: Pairs,
    options: Options,
    held_out: Pairs | None = None,
    candidates: Sequence[Candidate] | None = None,
    record: Record | None = None,
    identity: str | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
    limits: Decoding | None = None,
    read: Callable[[str], Any] = lambda source: source,
) -> Calibration:
    """Find the best decoder within a budget.

    Without references, metrics that need them compare with the outputs of a wide beam.

    Args:
        pipeline: the model.
        pairs: sentences like those to be decoded, as `Pairs.checked` returns.
        options: budget, metric and more.
        held_out: sentences to compare the best decoders on; half of `pairs` by default.
        candidates: what to choose from; by default all of `DecoderSpace`.
        record: keeps all outputs, so that an interrupted search continues.
        identity: of the model's files and the device, in the record.
        progress: called with the work done so far and in all; the latter is an estimate.
        limits: a request with the limits of all decoders; the pipeline's own by default.
        read: returns what the pipeline reads for a source, such as the samples of a WAV file.

    Raises:
        InvalidInput: an argument is wrong, or no decoder is within the budget.
    """
    ensure_callable("progress", progress, "a function of the work done and of all")
    metric = metric_named(options.metric or ("logprob" if pairs.references is None else "bleu"))
    for part in (pairs, held_out):
        _check([] if part is None else part.sources, pipeline, read)
    selection, held = pairs.split(options.seed) if held_out is None else (pairs, held_out)
    selection = selection.at(_shuffled(len(selection.sources), options.seed + 1))
    if candidates is None:
        candidates = DecoderSpace(pipeline.model, metric.name, options.unit).candidates()
    by_name = {candidate.name: candidate for candidate in candidates}
    if not by_name or len(by_name) < len(candidates):
        raise InvalidInput("candidates must be one or more, each with a name of its own")
    decoders = {name: candidate.decoder for name, candidate in by_name.items()}
    sizes = rung_sizes(len(selection.sources), options.first_rung)
    timed = options.unit == "milliseconds"
    limits = limits or Decoding(Greedy(), pipeline.max_length, pipeline.max_rows)
    trials = Trials(
        pipeline,
        limits,
        options.unit,
        record or Record(),
        identity or name_of(pipeline.model),
        read,
        options.batch if timed else None,
    )
    work = Work({n: d.rows for n, d in decoders.items()}, sizes, len(held.sources), progress)
    searched = _part(trials, metric, selection, sizes)
    checked = _part(trials, metric, held, [len(held.sources)])
    measured: dict[tuple[str, int], Measured] = {}

    def measure(name: str, size: int) -> Outcome:
        found = trials.measure(searched, decoders[name], size, work.add)
        measured[name, size] = found
        work.expect_below(options.budget, decoders[name].rows, found.cost)
        return found.point(metric)

    rungs = halve(_ladders(candidates), sizes, measure, options.budget, work.plan)
    ranking = _ranking(rungs, options.budget)
    if not ranking:  # on all sentences they may cost more than on the first
        costs = {name: found.cost for (name, _), found in measured.items()}
        if rungs:
            costs = {name: point.cost for name, point in rungs[-1].points.items()}
        raise _too_small(options, costs)
    finalists = ranking if options.check_all else _finalists(ranking, rungs[-1], by_name)
    work.plan_held_out(finalists)
    on_held = {
        name: trials.measure(checked, decoders[name], len(held.sources), work.add)
        for name in finalists
    }
    times: dict[str, Timing] = {}
    if timed:
        times = trials.in_turn(held.sources, {name: decoders[name] for name in finalists})
        for name, timing in times.items():
            on_held[name] = on_held[name]._replace(cost=timing.milliseconds)
    winner, comparisons = _unbeaten(metric, finalists, on_held, options)
    last = {name: measured[name, sizes[-1]].statistics for name in rungs[-1].points}
    on_selection: dict[str, Comparison] = {}
    if winner in last:
        others = {name: last[name] for name in ranking if name in last and name != winner}
        on_selection = compare_with_all(metric, last[winner], others, options.seed)
    return Calibration(
        candidates=by_name,
        metric=metric,
        options=options,
        references=_kind_of_references(metric, pairs),
        rungs=rungs,
        sentences=(len(selection.sources), len(held.sources)),
        held_out={name: found.point(metric) for name, found in on_held.items()},
        times=times,
        first=ranking[0],
        winner=winner,
        on_selection=on_selection,
        on_held_out=comparisons,
        calls=trials.calls,
        seconds=trials.seconds,
    )


def _check(sources: Sequence[str], pipeline: Pipeline, read: Callable[[str], Any]) -> None:
    """Refuse a source that cannot be decoded, before anything is."""
    if isinstance(pipeline, Translator):
        pipeline.ensure_lengths(sources, "sentence")
    for source in sources:
        read(source)


def _shuffled(count: int, seed: int) -> list[int]:
    places = list(range(count))
    random.Random(int(seed)).shuffle(places)
    return places


def _part(trials: Trials, metric: Metric, pairs: Pairs, sizes: Sequence[int]) -> Sentences:
    """Return a part; a wide beam's outputs stand in for references that are needed."""
    references = [""] * len(pairs.sources)
    if metric.needs_references:
        references = pairs.references or trials.outputs(pairs.sources, TEACHER)["texts"]
    return Sentences(pairs.sources, references, metric.fitted(references), sizes)


def _kind_of_references(metric: Metric, pairs: Pairs) -> str:
    if not metric.needs_references:
        return "none"
    return "given" if pairs.references is not None else f"beam {TEACHER.width}"


def _ladders(candidates: Sequence[Candidate]) -> list[list[str]]:
    ladders: dict[str, list[str]] = {}
    for candidate in candidates:
        ladders.setdefault(candidate.ladder, []).append(candidate.name)
    return list(ladders.values())


def _ranking(rungs: Sequence[Rung], budget: float) -> list[str]:
    """Return the candidates within the budget: those that came farther first, then by quality."""
    latest: dict[str, tuple[int, Outcome]] = {}
    for rung in rungs:
        latest |= {name: (rung.sentences, point) for name, point in rung.points.items()}
    within = [name for name, (_, point) in latest.items() if point.cost <= budget]

    def rank(name: str) -> tuple[int, float, float]:
        sentences, point = latest[name]
        return -sentences, -point.quality, point.cost

    return sorted(within, key=rank)


def _finalists(
    ranking: Sequence[str], last: Rung, candidates: Mapping[str, Candidate]
) -> list[str]:
    """Return those of the last rung, and the best of every family, in the order of the ranking."""
    best = {candidates[name].family: name for name in reversed(ranking)}
    return [name for name in ranking if name in last.points or name in best.values()]


def _unbeaten(
    metric: Metric, finalists: Sequence[str], measured: Mapping[str, Measured], options: Options
) -> tuple[str, dict[str, Comparison]]:
    """Return the first finalist that none beats beyond chance, beside the others in the budget."""
    within = [name for name in finalists if measured[name].cost <= options.budget]
    for name in within:
        others = {other: measured[other].statistics for other in within if other != name}
        comparisons = compare_with_all(metric, measured[name].statistics, others, options.seed)
        if not any(comparison.is_beaten for comparison in comparisons.values()):
            return name, comparisons
    # None is reached with finalists: the best of them is never beaten.
    raise _too_small(options, {name: found.cost for name, found in measured.items()})


def _too_small(options: Options, costs: Mapping[str, float]) -> InvalidInput:
    cheapest = min(costs, key=costs.__getitem__)
    return InvalidInput(
        f"a budget of {options.budget:g} {options.unit} per sentence is too small: the cheapest "
        f"decoder, {cheapest}, takes {costs[cheapest]:.1f}; give more"
    )
