"""Fit a model's confidence: its log-probability per token mapped to an expected sentence chrF.

The map is an isotonic regression on the outputs of a validation set. Its calibration error is that
of maps that were fitted to one half of the sentences, on the other half.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import ArrayLike

from npad.errors import InvalidInput
from npad.metrics.chrf import Chrf
from npad.metrics.metric import FloatArray
from npad.pipelines.outputs import Output
from npad.pipelines.translation import Translator
from npad.search.defaults import default_decoder
from npad.search.request import Decoding
from npad.storage.confidence import Confidence, log_prob_per_token
from npad.validation import as_list, brief, ensure_callable

BINS = 10  # of the calibration error, of equal counts
FEWEST = 100  # pairs: five of them in each bin of the calibration error of a half
DIGITS = 6  # of the log-probabilities in the file
CHRF_DIGITS = 3


def fit_confidence(
    translator: Translator,
    sources: Sequence[str],
    references: Sequence[str],
    decoding: Decoding | None = None,
    data: str = "",
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Confidence:
    """Fit the confidence of a decoder's outputs to their chrF on a validation set.

    Args:
        translator: the model.
        sources: sentences that it was not trained on; blank ones are skipped.
        references: their translations.
        decoding: the decoder and its limits; the translator's default, `Beam(5)`, if None.
        data: the name of the validation set, to be recorded.
        progress: called with the sentences decoded so far and all of them.

    Raises:
        InvalidInput: an argument is wrong, a source is too long, or the pairs are too few.
    """
    if not isinstance(translator, Translator):
        raise InvalidInput(
            f"translator must be a Translator, such as npad.load('en-de'), not {brief(translator)}"
        )
    ensure_callable("progress", progress, "a function of the sentences done and of all")
    sources = as_list("sources", sources, "a list of texts")
    references = as_list("references", references, "a list of texts")
    if len(sources) != len(references):
        raise InvalidInput(
            f"there are {len(sources):,} sources and {len(references):,} references; "
            "they must be pairs"
        )
    pairs = [pair for pair in zip(sources, references, strict=True) if pair[0].strip()]
    if len(pairs) < FEWEST:
        raise InvalidInput(
            f"a confidence needs at least {FEWEST} pairs to be fitted to, not {len(pairs)}; "
            "give more"
        )
    texts = [source for source, _ in pairs]
    outputs: list[Output] = []
    for output in translator.run(texts, decoding or Decoding(default_decoder(translator.model))):
        if isinstance(output, InvalidInput):
            raise output
        outputs.append(output)
        progress(len(outputs), len(texts))
    scores, chrf = scores_and_chrf(outputs, [reference for _, reference in pairs])
    error, constant_error = _held_out_errors(scores, chrf)
    knots, expected = isotonic(scores, chrf)
    return Confidence(
        log_prob_per_token=tuple(np.round(knots, DIGITS).tolist()),
        chrf=tuple(np.round(expected, CHRF_DIGITS).tolist()),
        decoder=outputs[0].signature,
        data=data,
        data_sha256=hashlib.sha256("\n".join(map("\t".join, pairs)).encode()).hexdigest(),
        sentences=len(pairs),
        metric=Chrf().signature(),
        rank_correlation=round(rank_correlation(scores, chrf), CHRF_DIGITS),
        error=round(error, CHRF_DIGITS),
        constant_error=round(constant_error, CHRF_DIGITS),
    )


def scores_and_chrf(
    outputs: Sequence[Output], references: Sequence[str]
) -> tuple[FloatArray, FloatArray]:
    """Return log-probability per token [n] and sentence chrF [n] of outputs."""
    scores = [log_prob_per_token(output.hypothesis) for output in outputs]
    statistics = Chrf().statistics([output.text for output in outputs], references)
    return np.array(scores), Chrf().sentence_scores(statistics)


def _held_out_errors(scores: FloatArray, chrf: FloatArray) -> tuple[float, float]:
    """Return the calibration errors of the map and of the mean chrF, each on the other half.

    Half of the sentences predicts the other half, and the two errors are averaged. (Pooling the
    predictions of many folds would let their errors cancel.)
    """
    errors = []
    for half in (slice(0, None, 2), slice(1, None, 2)):
        held = np.zeros(len(scores), bool)
        held[half] = True
        predicted = np.interp(scores[held], *isotonic(scores[~held], chrf[~held]))
        errors.append(
            [
                calibration_error(scores[held], prediction, chrf[held])
                for prediction in (predicted, chrf[~held].mean())
            ]
        )
    of_map, of_mean = np.mean(errors, 0).tolist()
    return of_map, of_mean


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


def rank_correlation(first: ArrayLike, second: ArrayLike) -> float:
    """Return Spearman's rank correlation; equal values share their mean rank.

    Returns:
        0 if all values of one side are equal.
    """
    a, b = (ranks - ranks.mean() for ranks in map(_ranks, (first, second)))
    scale = float(np.sqrt((a @ a) * (b @ b)))
    return float(a @ b) / scale if scale else 0.0


def _ranks(values: ArrayLike) -> FloatArray:
    _, place, counts = np.unique(np.asarray(values), return_inverse=True, return_counts=True)
    ranks: FloatArray = (np.cumsum(counts) - (counts - 1) / 2)[place]
    return ranks


def calibration_error(
    scores: ArrayLike, predicted: ArrayLike, values: ArrayLike, bins: int = BINS
) -> float:
    """Return the mean over bins of |mean value − mean prediction|.

    Args:
        scores: [n], which order the sentences: the bins are of equal counts in this order.
        predicted: [n], predictions, or a single one for all.
        values: [n], what was predicted.
        bins: their number.
    """
    values = np.asarray(values, float)
    gaps = values - np.broadcast_to(np.asarray(predicted, float), values.shape)
    parts = np.array_split(gaps[np.argsort(scores, kind="stable")], min(bins, len(gaps)))
    return float(np.average([abs(part.mean()) for part in parts], weights=list(map(len, parts))))
