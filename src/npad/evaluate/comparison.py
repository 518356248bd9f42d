"""Several decoders on one test set, with intervals of a paired bootstrap."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from npad.evaluate.bootstrap import Difference, paired
from npad.evaluate.report import Report, evaluate
from npad.metrics.bleu import Bleu
from npad.metrics.metric import FloatArray, LogProb, Scorer
from npad.pipelines.outputs import Translation
from npad.pipelines.translation import Translator
from npad.search.decoder import Decoder


@dataclass(frozen=True)
class Measured:
    """One decoder's figures, with 95 % intervals over resampled test sets."""

    report: Report
    nll: Difference  # mean NLL and its interval
    bleu: Difference
    nll_gain: Difference | None = None  # this decoder minus the first one; None for the first
    bleu_gain: Difference | None = None


def intervals(
    outputs: Sequence[Translation], references: Sequence[str]
) -> tuple[Difference, Difference]:
    """Return mean NLL and BLEU of translations, each with its interval."""
    statistics = Bleu().statistics(_texts(outputs), references)
    nll = paired(LogProb(), [_log_probs(outputs)], weights=(-1,))
    return nll, paired(Bleu(), [statistics], weights=(1,))


def compare(
    translator: Translator,
    sources: Sequence[str],
    references: Sequence[str],
    decoders: Mapping[str, Decoder],
    max_length: int = 200,
    max_rows: int = 1024,
    progress: Callable[[str, int, int], None] = lambda name, done, total: None,
) -> dict[str, Measured]:
    """Translate a test set with each decoder and compare the others with the first.

    Args:
        translator: the model.
        sources: the texts to translate.
        references: their reference translations, in the same order.
        decoders: at least one, by name.
        max_length: longest output in tokens, end token included.
        max_rows: most rows in a batch.
        progress: called with a decoder's name, the number of sentences done and their total.

    Returns:
        The figures by name, in the same order.

    Raises:
        InvalidInput: there are no pairs, or a source is too long.
    """
    translator, bleu = translator.caching(), Scorer(Bleu(), references)
    first: tuple[FloatArray, FloatArray] | None = None
    measured = {}
    for name, decoder in decoders.items():

        def show(done: int, total: int, name: str = name) -> None:
            progress(name, done, total)

        report, outputs = evaluate(
            translator, sources, references, decoder, max_length, max_rows, show
        )
        log_probs, counts = _log_probs(outputs), bleu.statistics(_texts(outputs))
        own = paired(LogProb(), [log_probs], (-1,)), paired(Bleu(), [counts], (1,))
        gains: tuple[Difference | None, Difference | None] = None, None
        if first:
            gains = (
                paired(LogProb(), (log_probs, first[0]), (-1, 1)),
                paired(Bleu(), (counts, first[1])),
            )
        first = first or (log_probs, counts)
        measured[name] = Measured(report, *own, *gains)
    return measured


def _log_probs(outputs: Sequence[Translation]) -> FloatArray:
    return LogProb.of([output.log_prob for output in outputs])


def _texts(outputs: Sequence[Translation]) -> list[str]:
    return [output.text for output in outputs]
