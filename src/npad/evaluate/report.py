"""Figures of decoders on a test set of texts, recordings or pictures: quality and cost."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass, field, replace
from typing import Any

from npad.engine.cost import Timing, count_calls, now
from npad.errors import InvalidInput
from npad.evaluate.bootstrap import Difference, paired
from npad.evaluate.timing import ALONE, BATCH, time_in_turn
from npad.metrics.metric import FloatArray, LogProb, Reference, Scorer, reference_texts
from npad.metrics.registry import METRICS, metric_named
from npad.model import Capabilities
from npad.pipelines.outputs import Output
from npad.pipelines.pipeline import Pipeline
from npad.pipelines.translation import Translator
from npad.search.request import Decoding

PROGRESS_SOURCES = 1000  # between two calls of `progress`

DEFAULT_METRICS = {"text": ("bleu", "chrf"), "recording": ("wer",), "picture": ("bleu4", "cider")}
UNITS = {"text": "sentence", "recording": "recording", "picture": "picture"}  # by medium
NLL = "nll"

FIGURES = (  # fields that are shown as they are
    *("length_ratio", "distinct_1", "distinct_2", "unique", "finished"),
    *("calls", "rescored", "seconds", "signature"),
)

Progress = Callable[[int, int], None]  # of sources done, and all


@dataclass(frozen=True)
class Report:
    """The figures of one decoder on one test set.

    Attributes:
        unit: what a source is called: a sentence, a recording or a picture.
        size: number of sources.
        references: number of references.
        scores: by metric, with 95 % intervals over resampled test sets. `nll` is the mean over
            sources of the output's clean −log p, end token included.
        length_ratio: output words over reference words, as the first metric counts them; None
            without references.
        distinct_1: distinct words over all words of the outputs.
        distinct_2: distinct word bigrams over all bigrams.
        texts: number of distinct outputs.
        unique: mean number of distinct texts among a source's hypotheses (a recording's windows').
        finished: share of outputs that ended with the end token.
        calls: model calls of the search: rows through one step.
        rescored: model calls of re-scoring.
        seconds: time of decoding.
        signature: of the decoding.
        sound_seconds: length of the recordings; 0 for other sources.
        times: if they were measured: in batches of one, and of many.
        gains: scores minus those of the decoder that this one is compared with; empty without one.
        statistics: of the outputs, by metric.
    """

    unit: str
    size: int
    references: int
    scores: Mapping[str, Difference]
    length_ratio: float | None
    distinct_1: float
    distinct_2: float
    texts: int
    unique: float
    finished: float
    calls: int
    rescored: int
    seconds: float
    signature: str
    sound_seconds: float = 0.0
    times: Sequence[Timing] = ()
    gains: Mapping[str, Difference] = field(default_factory=dict)
    statistics: Mapping[str, FloatArray] = field(default_factory=dict, repr=False, compare=False)

    def against(self, baseline: Report) -> Report:
        """Return the report with the differences to another decoder on the same test set."""
        pairs = {name: [own, baseline.statistics[name]] for name, own in self.statistics.items()}
        gains = {name: _bootstrapped(name, systems) for name, systems in pairs.items()}
        return replace(self, gains=gains)

    def in_words(self) -> list[str]:
        """Return its cost in time: that of one sentence alone, and of many together."""
        words = []
        for timing in self.times:
            fast, slow = timing.spread
            if timing.batch == 1:
                words.append(f"{timing.milliseconds:.1f} ms [{fast:.1f}, {slow:.1f}]")
            else:
                words.append(f"{timing.per_second:,.1f}/s [{1000 / slow:,.1f}, {1000 / fast:,.1f}]")
        return words

    def to_json(self) -> dict[str, Any]:
        """Return the figures by name, with plain values."""
        record: dict[str, Any] = {f"{self.unit}s": self.size}
        if self.unit == "picture":
            record |= {"references": self.references, "captions": self.texts}
        if self.unit == "recording":
            record |= {"sound_seconds": self.sound_seconds}
        for name, score in self.scores.items():
            key = "bleu" if name == "bleu4" else name  # as in 0.2
            record |= {key: score.value, f"{key}_interval": [score.low, score.high]}
            if name in self.gains:
                record[f"{key}_gain"] = vars(self.gains[name])
            if name != NLL and (signature := METRICS[name].signature()):
                record[f"{key}_signature"] = signature
        if "wer" in self.statistics:
            errors, _, words = self.statistics["wer"].sum(0)
            record |= {"errors": int(errors), "words": int(words)}
        if self.times:
            record["times"] = [
                vars(timing) | {"milliseconds": timing.milliseconds} for timing in self.times
            ]
        return record | {name: getattr(self, name) for name in FIGURES}


def with_times(
    pipeline: Pipeline,
    sources: Sequence[Any],
    decodings: Mapping[str, Decoding],
    reports: Mapping[str, Report],
    progress: Progress = lambda done, total: None,
) -> dict[str, Report]:
    """Return reports with the times of their decoders, measured in turn: alone, and in batches.

    Args:
        pipeline: the model.
        sources: of the test set, whose first ones are decoded.
        decodings: decoders with their limits, by name.
        reports: of these decoders.
        progress: called with the passes that are done, and all.
    """
    alone = time_in_turn(pipeline, sources[:ALONE], decodings, 1, progress=progress)
    many = sources[:BATCH]
    together = time_in_turn(pipeline, many, decodings, len(many), progress=progress)
    return {
        name: replace(report, times=(alone[name], together[name]))
        for name, report in reports.items()
    }


@dataclass(frozen=True)
class TimedOutputs:
    """The outputs of a decoder on some sources, and what they cost."""

    outputs: list[Output]
    calls: int  # model calls of the search
    rescored: int  # model calls of re-scoring
    seconds: float


def decode_timed(
    pipeline: Pipeline,
    sources: Iterable[Any],
    decoding: Decoding,
    window: int | None = None,
    progress: Callable[[int], None] = lambda done: None,
) -> TimedOutputs:
    """Decode sources, and count model calls and seconds.

    Args:
        pipeline: the model.
        sources: what it reads.
        decoding: the decoder and its limits.
        window: sources that are batched together; the pipeline's default if None.
        progress: called with the number of sources done, after every window.
    """
    outputs: list[Output] = []
    device = Capabilities.of(pipeline.model).device
    start = now(device)
    with count_calls() as calls:
        for output in pipeline.run(sources, decoding, window):
            if isinstance(output, InvalidInput):
                raise output
            outputs.append(output)
            if window is None or len(outputs) % window == 0:
                progress(len(outputs))
    seconds = now(device) - start
    return TimedOutputs(outputs, calls.search, calls.rescoring, seconds)


def compare(
    pipeline: Pipeline,
    sources: Sequence[Any],
    references: Sequence[Reference] | None,
    decoders: Mapping[str, Decoding],
    metrics: Sequence[str] | None = None,
    progress: Callable[[str, int, int], None] = lambda name, done, total: None,
) -> dict[str, Report]:
    """Decode a test set with each decoder and compare the others with the first.

    Args:
        pipeline: the model.
        sources: as in `Evaluation`.
        references: as in `Evaluation`.
        decoders: at least one, by name.
        metrics: as in `Evaluation`.
        progress: called with a decoder's name, the number of sources done and their total.

    Returns:
        The reports by name, in the same order.

    Raises:
        InvalidInput: as `Evaluation`.
    """
    test_set = Evaluation(pipeline, sources, references, metrics)
    reports: dict[str, Report] = {}
    for name, decoding in decoders.items():

        def show(done: int, total: int, name: str = name) -> None:
            progress(name, done, total)

        report, _ = test_set.evaluate(decoding, show)
        first = next(iter(reports.values()), None)
        reports[name] = report if first is None else report.against(first)
    return reports


class Evaluation:
    """Sources and references that one decoder after another is evaluated on, by the same metrics.

    What an output counts is computed once, even if several decoders return it; so are the tokens of
    a text.

    Args:
        pipeline: the model.
        sources: what it reads: texts, recordings or pictures.
        references: the reference of each, or several, in the same order; None measures
            log-probability and cost alone.
        metrics: names of metrics; by default those that are usual for the sources.

    Raises:
        InvalidInput: there are no pairs, or a metric needs references.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        sources: Iterable[Any],
        references: Sequence[Reference] | None,
        metrics: Sequence[str] | None = None,
    ) -> None:
        has_references = references is not None
        if references is None:
            references = [""] * len(sources) if isinstance(sources, Sized) else []
        if not references:
            raise InvalidInput("there is nothing to evaluate: the test set is empty")
        self.pipeline = pipeline.caching() if isinstance(pipeline, Translator) else pipeline
        self.sources, self.references = sources, references
        if isinstance(sources, Sized):
            self._ensure_pairs(len(sources))
        usual = DEFAULT_METRICS[pipeline.medium] if has_references else ()
        chosen = [metric_named(name) for name in (usual if metrics is None else metrics)]
        for metric in chosen:
            if metric.needs_references and not has_references:
                raise InvalidInput(f"{metric.name} compares outputs with references; give them")
        self.has_references = has_references
        self.scorers = {metric.name: Scorer(metric, references) for metric in chosen}

    def evaluate(
        self, decoding: Decoding, progress: Progress = lambda done, total: None
    ) -> tuple[Report, list[Output]]:
        """Return the figures of a decoder, and its outputs in order.

        Args:
            decoding: the decoder and its limits.
            progress: called with the number of sources done and their total.

        Raises:
            InvalidInput: a source cannot be decoded.
        """
        pipeline, total = self.pipeline, len(self.references)
        device = Capabilities.of(pipeline.model).device
        start, window = now(device), None
        if isinstance(pipeline, Translator):  # a source that is too long is refused at once
            window = min(PROGRESS_SOURCES, total)
            pipeline.ensure_lengths(list(self.sources), "source")
        checking = now(device) - start
        decoded = decode_timed(
            pipeline, self.sources, decoding, window, lambda done: progress(done, total)
        )
        self._ensure_pairs(len(decoded.outputs))
        progress(total, total)
        return self._report(replace(decoded, seconds=decoded.seconds + checking)), decoded.outputs

    def _ensure_pairs(self, count: int) -> None:
        if count != len(self.references):
            noun = "source" if self.pipeline.medium == "text" else self.pipeline.medium
            raise InvalidInput(
                f"there are {count:,} {noun}s and {len(self.references):,} references; "
                "they must be pairs"
            )

    def _report(self, decoded: TimedOutputs) -> Report:
        outputs = decoded.outputs
        texts = [output.text for output in outputs]
        log_probs = [output.log_prob for output in outputs]
        statistics = {NLL: LogProb.of(log_probs)}
        for name, scorer in self.scorers.items():
            statistics[name] = scorer.statistics(texts, log_probs)
        ratios = (
            scorer.metric.length_ratio(statistics[name].sum(0))
            for name, scorer in self.scorers.items()
            if scorer.metric.needs_references
        )
        # A recording's windows are decoded one by one.
        parts = [part for o in outputs for part in [w.output for w in o.windows] or [o]]
        return Report(
            unit=UNITS[self.pipeline.medium],
            size=len(outputs),
            references=sum(len(reference_texts(text)) for text in self.references)
            if self.has_references
            else 0,
            scores={name: _bootstrapped(name, [own]) for name, own in statistics.items()},
            length_ratio=next(ratios, None),
            distinct_1=distinct(texts, 1),
            distinct_2=distinct(texts, 2),
            texts=len(set(texts)),
            unique=sum(map(distinct_texts, parts)) / len(parts),
            finished=sum(part.hypothesis.finished for part in parts) / len(parts),
            calls=decoded.calls,
            rescored=decoded.rescored,
            seconds=decoded.seconds,
            signature=outputs[0].signature,
            sound_seconds=sum(output.windows[-1].end for output in outputs if output.windows),
            statistics=statistics,
        )


def _bootstrapped(name: str, systems: Sequence[FloatArray]) -> Difference:
    """Return the score of a system, or the difference of two, with its interval."""
    weights = (1, -1)[: len(systems)]
    if name == NLL:
        return paired(LogProb(), systems, [-weight for weight in weights])
    return paired(METRICS[name], systems, weights)


def distinct_texts(output: Output) -> int:
    """Return the number of distinct texts among an output and its alternatives."""
    return len({each.text for each in (output, *output.alternatives)})


def distinct(texts: Iterable[str], n: int) -> float:
    """Return distinct word n-grams over all word n-grams (Li et al., 2016); 0 if there are none."""
    ngrams = [
        tuple(words[i : i + n])
        for words in map(str.split, texts)
        for i in range(len(words) - n + 1)
    ]
    return len(set(ngrams)) / len(ngrams) if ngrams else 0.0
