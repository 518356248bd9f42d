"""Figures of one decoder on pictures: BLEU-4, CIDEr-D, probability, diversity and cost."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from torch import Tensor

from npad.engine.cost import count_calls
from npad.errors import InvalidInput
from npad.evaluate.bootstrap import paired
from npad.evaluate.report import distinct, distinct_texts
from npad.metrics.captions import Bleu4, Cider
from npad.metrics.metric import LogProb
from npad.pipelines.captioning import MAX_CAPTION, Captioner
from npad.pipelines.outputs import Translation
from npad.search.decoder import Decoder

Interval = tuple[float, float]  # 95 %, bootstrap over the pictures


@dataclass(frozen=True)
class CaptionReport:
    """The figures of one decoder on pictures with references."""

    pictures: int
    references: int
    nll: float  # mean over pictures of the caption's clean −log p, end token included
    nll_interval: Interval
    bleu: float  # BLEU-4 in per cent, as captioning papers compute it
    bleu_interval: Interval
    cider: float  # CIDEr-D, 0 to 10
    cider_interval: Interval
    length_ratio: float  # words of the captions over those of the closest references
    distinct_1: float  # distinct words over all words of the captions
    distinct_2: float  # distinct word bigrams over all bigrams
    captions: int  # distinct ones among the pictures'
    unique: float  # mean number of distinct texts among a picture's hypotheses
    finished: float  # share of captions that ended with the end token
    calls: int  # model calls of the search: rows through one step
    rescored: int  # model calls of re-scoring
    seconds: float
    signature: str


def evaluate_captions(
    captioner: Captioner,
    pictures: Iterable[Tensor],
    references: Sequence[Sequence[str]],
    decoder: Decoder,
    max_length: int = MAX_CAPTION,
    max_rows: int = 1024,
) -> tuple[CaptionReport, list[Translation]]:
    """Caption pictures and compute the figures.

    Args:
        captioner: the model.
        pictures: each uint8 [3, size, size].
        references: the captions of each picture, in the same order.
        decoder: the decoder.
        max_length: longest caption in tokens, end token included.
        max_rows: most rows in a batch.

    Returns:
        The figures, and the captions in order.

    Raises:
        InvalidInput: there are fewer than two pictures, or not as many as sets of references.
    """
    bleu, cider = Bleu4(), Cider().fitted(references)
    start = time.perf_counter()
    with count_calls() as calls:
        outputs = captioner.caption(pictures, decoder, max_length, max_rows)
    seconds = time.perf_counter() - start
    if len(outputs) != len(references):
        raise InvalidInput(
            f"there are {len(outputs):,} pictures and references of {len(references):,}; "
            "they must be pairs"
        )
    texts = [output.text for output in outputs]
    counts, scores = bleu.statistics(texts, references), cider.statistics(texts, references)
    log_probs = LogProb.of([output.log_prob for output in outputs])
    nll = paired(LogProb(), [log_probs], weights=(-1,))
    resampled = paired(bleu, [counts], weights=(1,))
    by_cider = paired(cider, [scores], weights=(1,))
    report = CaptionReport(
        pictures=len(outputs),
        references=sum(map(len, references)),
        nll=nll.value,
        nll_interval=(nll.low, nll.high),
        bleu=bleu.score(counts),
        bleu_interval=(resampled.low, resampled.high),
        cider=by_cider.value,
        cider_interval=(by_cider.low, by_cider.high),
        length_ratio=bleu.length_ratio(counts.sum(0)),
        distinct_1=distinct(texts, 1),
        distinct_2=distinct(texts, 2),
        captions=len(set(texts)),
        unique=sum(map(distinct_texts, outputs)) / len(outputs),
        finished=sum(output.hypothesis.finished for output in outputs) / len(outputs),
        calls=calls.search,
        rescored=calls.rescoring,
        seconds=seconds,
        signature=outputs[0].signature,
    )
    return report, outputs
