"""Fit a model's confidence: the quality to expect of an output, by what the search found.

Of several signals the one is chosen whose isotonic regression predicts quality best on held-out
folds of a validation set. The figures of the fit are of a signal that was chosen and a map that was
fitted on one half of the set, measured on the other.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from npad.errors import InvalidInput
from npad.evaluate.bootstrap import Difference
from npad.evaluate.risk import (
    Figure,
    auroc,
    calibration_error,
    rank_correlation,
    resampled,
    share_in_certain_half,
)
from npad.metrics.metric import FloatArray, Metric, Reference
from npad.pipelines.estimates import candidates_of
from npad.pipelines.outputs import Output
from npad.pipelines.pipeline import Pipeline
from npad.search.defaults import default_decoder
from npad.search.request import Decoding
from npad.selectors import Weighting
from npad.signals import DEFAULT, LogProbPerToken, Posterior, Signal, Similarity, SureSimilarity
from npad.signatures import signature
from npad.specs import spec
from npad.storage.confidence import BEST, PLAIN, Confidence, SignalMap, listing_of
from npad.validation import as_list, brief, ensure_callable

FEWEST = 100  # pairs: five of them in each bin of the calibration error of a half
FOLDS = 10
LOWEST = 25  # per cent of the outputs that are bad by a metric that has no right and wrong
PROBABILITY: Weighting = "probability"
COUNT: Weighting = "count"
DIGITS = 6  # of the signals in the file
QUALITY_DIGITS = 3


@dataclass(frozen=True)
class SignalledOutputs:
    """Outputs with the values of several signals, and their quality.

    Attributes:
        signals: values [n] by the signal's name, best guess first.
        quality: [n], 0 to 100.
        bad: [n], whether an output is one that a confidence should warn of.
    """

    signals: Mapping[str, FloatArray]
    quality: FloatArray
    bad: FloatArray

    def at(self, places: Any) -> SignalledOutputs:
        """Return some of the outputs."""
        signals = {name: values[places] for name, values in self.signals.items()}
        return SignalledOutputs(signals, self.quality[places], self.bad[places])

    @cached_property
    def held_out_errors(self) -> dict[str, float]:
        """The root mean squared error of each signal's map on held-out folds."""
        fold = np.arange(len(self.quality)) % FOLDS
        errors = {}
        for name, values in self.signals.items():
            squares = [
                (np.interp(values[held], *isotonic(values[~held], self.quality[~held])) - quality)
                ** 2
                for held in (fold == number for number in range(FOLDS))
                for quality in [self.quality[held]]
            ]
            errors[name] = float(np.sqrt(np.concatenate(squares).mean()))
        return errors

    @property
    def choice(self) -> str:
        """The signal whose map predicts held-out quality best."""
        return min(self.held_out_errors, key=self.held_out_errors.__getitem__)

    @cached_property
    def by_halves(self) -> HeldOut:
        """What each half expects of the other, with the signal that it would choose."""
        half = np.arange(len(self.quality)) % 2
        expected, plain, constant = np.zeros((3, len(half)))
        chosen = []
        for number in (0, 1):
            own, other = self.at(half != number), half == number
            chosen.append(own.choice)
            for into, name in ((expected, own.choice), (plain, next(iter(self.signals)))):
                knots = isotonic(own.signals[name], own.quality)
                into[other] = np.interp(self.signals[name][other], *knots)
            constant[other] = own.quality.mean()
        return HeldOut(expected, plain, constant, half, (chosen[0], chosen[1]), self)


@dataclass(frozen=True)
class HeldOut:
    """Expected quality [n] of outputs that it was not fitted to.

    Attributes:
        expected: by the chosen signals.
        plain: by log p per token.
        constant: the mean quality of the other half.
        half: 0 or 1.
        chosen: the signal for each half, which the other half chose.
        outputs: the outputs.
    """

    expected: FloatArray
    plain: FloatArray
    constant: FloatArray
    half: Any
    chosen: tuple[str, str]
    outputs: SignalledOutputs

    def figures(self) -> dict[str, dict[str, Difference]]:
        """Return each figure, of the confidence, of log p per token alone, and the difference."""
        measured: dict[str, tuple[Figure, FloatArray]] = {
            "rank correlation": (rank_correlation, self.outputs.quality),
            "AUROC": (auroc, self.outputs.bad),
            "calibration error": (_gap, self.outputs.quality),
            "bad in the certain half": (share_in_certain_half, self.outputs.bad),
        }
        return {name: self._compared(*values) for name, values in measured.items()}

    def _compared(self, figure: Figure, values: FloatArray) -> dict[str, Difference]:
        halves = np.stack([values, self.half], 1)  # a figure is the mean of those of the halves

        def by_half(confidence: FloatArray, rows: FloatArray) -> float:
            parts = [rows[:, 1] == number for number in (0, 1)]
            return float(np.mean([figure(confidence[part], rows[part, 0]) for part in parts]))

        own, plain = (self.expected, halves), (self.plain, halves)
        return {
            "confidence": resampled(by_half, [own]),
            "log p per token": resampled(by_half, [plain]),
            "difference": resampled(by_half, [own, plain], (1, -1)),
        }

    def constant_error(self) -> float:
        """Return the calibration error of the mean quality of the other half."""
        parts = [self.half == number for number in (0, 1)]
        quality = self.outputs.quality
        gaps = [calibration_error(self.expected[p], self.constant[p], quality[p]) for p in parts]
        return float(np.mean(gaps))


def _gap(confidence: FloatArray, quality: FloatArray) -> float:
    return calibration_error(confidence, confidence, quality)


@dataclass(frozen=True)
class ConfidenceFit:
    """A fitted confidence, and what it was chosen by.

    Attributes:
        confidence: what is stored beside the model.
        outputs: of the validation set.
        figures: by name; of the confidence, of log p per token, and the difference.
    """

    confidence: Confidence
    outputs: SignalledOutputs
    figures: dict[str, dict[str, Difference]]


def default_signals(metric: Metric) -> tuple[Signal, ...]:
    """Return the signals that a fit chooses from, for a quality."""
    alike = metric.name if metric.compares_tokens else "chrf"
    return (
        LogProbPerToken(),
        Posterior(),
        Posterior(alpha=1.0),
        Posterior("count"),
        *(
            kind(alike, weights, alpha)
            for kind in (Similarity, SureSimilarity)
            for weights, alpha in (*((PROBABILITY, a) for a in (0.0, 0.5, 1.0)), (COUNT, 0.0))
        ),
    )


def fit_confidence(
    pipeline: Pipeline,
    sources: Sequence[Any],
    references: Sequence[Reference],
    decoding: Decoding | None = None,
    data: str = "",
    progress: Callable[[int, int], None] = lambda done, total: None,
    signals: Sequence[Signal] | None = None,
    metric: Metric | None = None,
) -> ConfidenceFit:
    """Fit the confidence of a decoder's outputs to their quality on a validation set.

    Args:
        pipeline: the model, of texts, recordings or pictures.
        sources: that it was not trained on; blank texts are skipped.
        references: of each source.
        decoding: the decoder and its limits; the model's default, `Beam(5)`, if None.
        data: the name of the validation set, to be recorded.
        progress: called with the sources decoded so far and all of them.
        signals: to choose from; those of `default_signals` if None. Log p per token, which all
            other decoders need, is fitted as well.
        metric: of the quality; by default chrF of texts and captions, word errors of transcripts.

    Raises:
        InvalidInput: an argument is wrong, a source cannot be decoded, or the pairs are too few.
    """
    if not isinstance(pipeline, Pipeline):
        raise InvalidInput(
            f"pipeline must be a Translator, Transcriber or Captioner, such as npad.load('en-de'), "
            f"not {brief(pipeline)}"
        )
    ensure_callable("progress", progress, "a function of the sources done and of all")
    sources = as_list("sources", sources, f"a list of {pipeline.medium}s")
    references = as_list("references", references, "a list of references")
    if len(sources) != len(references):
        raise InvalidInput(
            f"there are {len(sources):,} sources and {len(references):,} references; "
            "they must be pairs"
        )
    pairs = [
        pair
        for pair in zip(sources, references, strict=True)
        if not isinstance(pair[0], str) or pair[0].strip()
    ]
    if len(pairs) < FEWEST:
        raise InvalidInput(
            f"a confidence needs at least {FEWEST} pairs to be fitted to, not {len(pairs)}; "
            "give more"
        )
    metric = pipeline.measure if metric is None else metric
    decoding = Decoding(default_decoder(pipeline.model)) if decoding is None else decoding
    outputs: list[Output] = []
    for output in pipeline.run([source for source, _ in pairs], decoding):
        if isinstance(output, InvalidInput):
            raise output
        if len(output.windows) > 1:
            raise InvalidInput(
                f"recording {len(outputs) + 1} has {len(output.windows)} windows; a confidence is "
                "fitted to recordings that the model reads at once: cut it"
            )
        outputs.append(output)
        progress(len(outputs), len(pairs))
    measured = measure(
        pipeline,
        outputs,
        [reference for _, reference in pairs],
        metric,
        default_signals(metric) if signals is None else signals,
    )
    return _fitted(pipeline, measured, decoding, data, _digest(pairs), metric)


def _digest(pairs: Sequence[tuple[Any, Reference]]) -> str:
    texts = [(source if isinstance(source, str) else "", reference) for source, reference in pairs]
    lines = (
        "\t".join([source, *([reference] if isinstance(reference, str) else reference)])
        for source, reference in texts
    )
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def measure(
    pipeline: Pipeline,
    outputs: Sequence[Output],
    references: Sequence[Reference],
    metric: Metric,
    signals: Sequence[Signal],
) -> SignalledOutputs:
    """Return the signals of outputs, with all their candidates, and their quality.

    Signals that read a list are left out if no output has alternatives. Log p per token comes
    first.
    """
    listed = any(output.alternatives for output in outputs)
    kept = [s for s in signals if spec(s) != PLAIN and (listed or not s.reads_list)]
    candidates = []
    for output in outputs:
        found = [output, *output.alternatives]
        hypotheses = [candidate.hypothesis for candidate in found]
        texts = [candidate.text for candidate in found]
        candidates.append(candidates_of(hypotheses, texts, pipeline.comparable))
    quality = quality_of(metric, [output.text for output in outputs], references)
    values = {
        spec(signal): np.array([signal(own[0], own) for own in candidates])
        for signal in (DEFAULT, *kept)
    }
    return SignalledOutputs(values, quality, bad_of(metric, quality))


def quality_of(metric: Metric, texts: Sequence[str], references: Sequence[Reference]) -> FloatArray:
    """Return the quality [n] of outputs, 0 to 100: of a metric of errors, 100 less its score.

    Raises:
        InvalidInput: the metric has no scores of single outputs on that scale.
    """
    if not metric.needs_references or (not metric.lower_is_better and metric.best != BEST):
        raise InvalidInput(
            f"a confidence cannot be expected {metric.title}: choose a metric of 0 to 100, such as "
            "chrf or wer"
        )
    scores = metric.sentence_scores(metric.statistics(texts, references))
    return np.clip(BEST - scores, 0, BEST) if metric.lower_is_better else scores


def bad_of(metric: Metric, quality: FloatArray) -> FloatArray:
    """Return which outputs are bad, [n]: those with an error, or the lowest quarter in quality."""
    limit = BEST if metric.lower_is_better else np.percentile(quality, LOWEST)
    bad = quality < limit if metric.lower_is_better else quality <= limit
    return bad.astype(np.float64)


def _fitted(
    pipeline: Pipeline,
    outputs: SignalledOutputs,
    decoding: Decoding,
    data: str,
    digest: str,
    metric: Metric,
) -> ConfidenceFit:
    def map_of(name: str) -> SignalMap:
        knots, expected = isotonic(outputs.signals[name], outputs.quality)
        ends = np.round(knots, DIGITS).tolist(), np.round(expected, QUALITY_DIGITS).tolist()
        return SignalMap(name, *map(tuple, ends))

    figures = outputs.by_halves.figures()
    values = {
        name: round(rows["confidence"].value, QUALITY_DIGITS) for name, rows in figures.items()
    }
    chosen = outputs.choice
    confidence = Confidence(
        plain=map_of(PLAIN),
        chosen=None if chosen == PLAIN else map_of(chosen),
        listed=listing_of(decoding.decoder),
        decoder=signature(decoding.decoder, pipeline.model),
        data=data,
        data_sha256=digest,
        sentences=len(outputs.quality),
        measure=metric.name,
        metric=metric.signature(),
        rank_correlation=values["rank correlation"],
        auroc=values["AUROC"],
        error=values["calibration error"],
        constant_error=round(outputs.by_halves.constant_error(), QUALITY_DIGITS),
    )
    return ConfidenceFit(confidence, outputs, figures)


def isotonic(scores: ArrayLike, values: ArrayLike) -> tuple[FloatArray, FloatArray]:
    """Fit the non-decreasing function of least squared error, by pooling adjacent violators.

    Args:
        scores: [n], of which it is a function.
        values: [n], to be predicted.

    Returns:
        The ends of its constant pieces, [knots], ascending, and its values there.
    """
    distinct, place = np.unique(np.asarray(scores, float), return_inverse=True)
    sums, counts = np.bincount(place, np.asarray(values, float)), np.bincount(place)
    pieces: list[tuple[float, int, float, float]] = []  # sum, count, first score, last score
    for total, count, score in zip(sums.tolist(), counts.tolist(), distinct.tolist(), strict=True):
        piece = (total, count, score, score)
        while pieces and pieces[-1][0] * piece[1] >= piece[0] * pieces[-1][1]:  # means do not rise
            total, count, first, _ = pieces.pop()
            piece = (total + piece[0], count + piece[1], first, piece[3])
        pieces.append(piece)
    knots = [
        (score, total / count)
        for total, count, first, last in pieces
        for score in sorted({first, last})
    ]
    ends, heights = np.array(knots).T
    return ends, heights
