"""Figures of one decoder on recordings: word error rate, probability and cost."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from npad.engine.cost import count_calls
from npad.errors import InvalidInput
from npad.evaluate.bootstrap import paired
from npad.metrics.wer import Wer
from npad.pipelines.transcription import Transcriber
from npad.search.decoder import Decoder
from npad.signatures import signature


@dataclass(frozen=True)
class SpeechReport:
    """The figures of one decoder on recordings with transcripts."""

    recordings: int
    sound_seconds: float
    words: int  # of the references, normalised
    errors: int  # substitutions, deletions and insertions
    wer: float  # in per cent
    wer_interval: tuple[float, float]  # 95 %, bootstrap over the recordings
    nll: float  # mean over recordings of the clean −log p, summed over windows
    finished: float  # share of windows whose output ended with the end token
    calls: int  # model calls of the search: rows through one step
    rescored: int  # model calls of re-scoring
    seconds: float
    signature: str


def evaluate_speech(
    transcriber: Transcriber,
    recordings: Iterable[Tensor],
    references: Sequence[str],
    decoder: Decoder,
    max_length: int = 200,
    max_rows: int = 256,
) -> tuple[SpeechReport, list[str]]:
    """Transcribe recordings and compute the figures.

    Args:
        transcriber: the model.
        recordings: each [samples], at the transcriber's rate; read one by one.
        references: English transcripts, in the same order.
        decoder: the decoder.
        max_length: longest output of a window in tokens, end token included.
        max_rows: most rows in a batch.

    Returns:
        The figures, and the transcripts in order.

    Raises:
        InvalidInput: there are no recordings, or not as many as references.
    """
    if not references:
        raise InvalidInput("there is nothing to evaluate: the test set is empty")
    start = time.perf_counter()
    with count_calls() as calls:
        found = list(transcriber.stream(recordings, decoder, max_length, max_rows))
    seconds = time.perf_counter() - start
    if len(found) != len(references):
        raise InvalidInput(
            f"there are {len(found):,} recordings and {len(references):,} references; "
            "they must be pairs"
        )
    windows = [window for output in found for window in output.windows]
    texts = [output.text for output in found]
    counts = Wer().statistics(texts, references)
    rate = paired(Wer(), [counts], weights=(1,))
    report = SpeechReport(
        recordings=len(found),
        sound_seconds=sum(output.windows[-1].end for output in found),
        words=int(counts[:, 2].sum()),
        errors=int(counts[:, 0].sum()),
        wer=rate.value,
        wer_interval=(rate.low, rate.high),
        nll=-sum(window.output.log_prob for window in windows) / len(found),
        finished=float(np.mean([window.output.hypothesis.finished for window in windows])),
        calls=calls.search,
        rescored=calls.rescoring,
        seconds=seconds,
        signature=signature(decoder, transcriber.model),
    )
    return report, texts
