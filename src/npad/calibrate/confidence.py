"""Fit a model's confidence: its log-probability per token mapped to an expected sentence chrF.

The map is an isotonic regression on the outputs of a validation set. Its calibration error is that
of maps that were fitted to one half of the sentences, on the other half.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

import numpy as np

from npad.errors import InvalidInput
from npad.evaluate.calibration import FloatArray, calibration_error, isotonic, rank_correlation
from npad.pipelines.outputs import Translation
from npad.pipelines.translation import Translator
from npad.search.decoder import Decoder
from npad.storage.confidence import Confidence, log_prob_per_token
from npad.validation import as_list, brief, ensure_callable

FEWEST = 100  # pairs: five of them in each bin of the calibration error of a half
DIGITS = 6  # of the log-probabilities in the file
CHRF_DIGITS = 3


def fit_confidence(
    translator: Translator,
    sources: Sequence[str],
    references: Sequence[str],
    decoder: Decoder | None = None,
    data: str = "",
    max_length: int = 200,
    max_rows: int = 1024,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Confidence:
    """Fit the confidence of a decoder's outputs to their chrF on a validation set.

    Args:
        translator: the model.
        sources: sentences that it was not trained on; blank ones are skipped.
        references: their translations.
        decoder: the translator's default, `Beam(5)`, if None.
        data: the name of the validation set, to be recorded.
        max_length: longest output in tokens, end token included.
        max_rows: most rows in a batch.
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
    outputs: list[Translation] = []
    for translation in translator.stream(texts, decoder, max_length, max_rows):
        outputs.append(translation)
        progress(len(outputs), len(texts))
    scores, chrf, metric = scores_and_chrf(outputs, [reference for _, reference in pairs])
    error, constant_error = _held_out_errors(scores, chrf)
    knots, expected = isotonic(scores, chrf)
    return Confidence(
        log_prob_per_token=tuple(np.round(knots, DIGITS).tolist()),
        chrf=tuple(np.round(expected, CHRF_DIGITS).tolist()),
        decoder=outputs[0].signature,
        data=data,
        data_sha256=hashlib.sha256("\n".join(map("\t".join, pairs)).encode()).hexdigest(),
        sentences=len(pairs),
        metric=metric,
        rank_correlation=round(rank_correlation(scores, chrf), CHRF_DIGITS),
        error=round(error, CHRF_DIGITS),
        constant_error=round(constant_error, CHRF_DIGITS),
    )


def scores_and_chrf(
    outputs: Sequence[Translation], references: Sequence[str]
) -> tuple[FloatArray, FloatArray, str]:
    """Return log-probability per token and sentence chrF of outputs, and the metric's signature.

    Args:
        outputs: translations, at least one.
        references: one for each.

    Returns:
        Log-probability per token [n], sentence chrF [n], and sacrebleu's signature.
    """
    from sacrebleu.metrics.chrf import CHRF

    metric = CHRF()
    scores = [log_prob_per_token(output.hypothesis) for output in outputs]
    chrf = [
        metric.sentence_score(output.text, [reference]).score
        for output, reference in zip(outputs, references, strict=True)
    ]
    return np.array(scores), np.array(chrf), str(metric.get_signature())


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
