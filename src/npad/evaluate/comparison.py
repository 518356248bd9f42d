"""Several decoders on one test set, with intervals of a paired bootstrap."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from npad.evaluate.bleu import Bleu, Counts
from npad.evaluate.bootstrap import Difference, paired
from npad.evaluate.report import Report, evaluate
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
    return paired([_nll(outputs)], [Bleu(references).counts(_texts(outputs))], weights=(1,))


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
    translator, bleu = translator.caching(), Bleu(references)
    first: tuple[NDArray[np.float64], Counts] | None = None
    measured = {}
    for name, decoder in decoders.items():

        def show(done: int, total: int, name: str = name) -> None:
            progress(name, done, total)

        report, outputs = evaluate(
            translator, sources, references, decoder, max_length, max_rows, show
        )
        nll, counts = _nll(outputs), bleu.counts(_texts(outputs))
        own = paired([nll], [counts], weights=(1,))
        gains = paired((nll, first[0]), (counts, first[1])) if first else (None, None)
        first = first or (nll, counts)
        measured[name] = Measured(report, *own, *gains)
    return measured


def _nll(outputs: Sequence[Translation]) -> NDArray[np.float64]:
    return np.array([-output.log_prob for output in outputs])


def _texts(outputs: Sequence[Translation]) -> list[str]:
    return [output.text for output in outputs]
