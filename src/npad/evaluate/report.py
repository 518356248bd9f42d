"""Figures of one decoder on one test set: probability, quality, diversity and cost."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from npad.engine.cost import count_calls
from npad.errors import InvalidInput
from npad.pipelines.outputs import Translation
from npad.pipelines.translation import Translator
from npad.search.decoder import Decoder

PROGRESS_SENTENCES = 1000  # between two calls of `progress`


@dataclass(frozen=True)
class Report:
    """The figures of one decoder on one test set."""

    sentences: int
    nll: float  # mean over sentences of the output's clean −log p, end token included
    bleu: float
    chrf: float
    length_ratio: float  # output words over reference words, as sacrebleu counts them
    distinct_1: float  # distinct words over all words of the outputs
    distinct_2: float  # distinct word bigrams over all bigrams
    unique: float  # mean number of distinct texts among a sentence's hypotheses
    finished: float  # share of outputs that ended with the end token
    calls: int  # model calls of the search: rows through one step
    rescored: int  # model calls of re-scoring
    seconds: float
    signature: str
    bleu_signature: str
    chrf_signature: str


def evaluate(
    translator: Translator,
    sources: Sequence[str],
    references: Sequence[str],
    decoder: Decoder,
    max_length: int = 200,
    max_rows: int = 1024,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> tuple[Report, list[Translation]]:
    """Translate a test set and compute its figures.

    Args:
        translator: the model.
        sources: the texts to translate.
        references: their reference translations, in the same order.
        decoder: the decoder.
        max_length: longest output in tokens, end token included.
        max_rows: most rows in a batch.
        progress: called with the number of sentences done and their total.

    Returns:
        The figures, and the translations in order.

    Raises:
        InvalidInput: there are no pairs, or a source is too long.
    """
    if len(sources) != len(references):
        raise InvalidInput(
            f"there are {len(sources):,} sources and {len(references):,} references; "
            "they must be pairs"
        )
    if not sources:
        raise InvalidInput("there is nothing to evaluate: the test set is empty")
    start_time = time.perf_counter()
    translator = translator.caching()
    for i, size in translator.too_long(sources).items():
        raise InvalidInput(
            f"source {i + 1} has {size}; at most {translator.longest:,} tokens are allowed: "
            "split it"
        )
    tokenising = time.perf_counter() - start_time
    with count_calls() as calls:
        outputs, seconds = timed_translations(
            translator, sources, decoder, max_length, max_rows, progress, PROGRESS_SENTENCES
        )
    seconds += tokenising
    return report(outputs, references, calls.search, calls.rescoring, seconds), outputs


def timed_translations(
    translator: Translator,
    sources: Sequence[str],
    decoder: Decoder,
    max_length: int = 200,
    max_rows: int = 1024,
    progress: Callable[[int, int], None] = lambda done, total: None,
    chunk: int | None = None,
) -> tuple[list[Translation], float]:
    """Return the translations of a test set and the seconds they took.

    `progress` is called after every `chunk` sentences; without `chunk`, once at the end.
    """
    outputs: list[Translation] = []
    chunk = chunk or max(1, len(sources))
    start_time = time.perf_counter()
    for translation in translator.stream(sources, decoder, max_length, max_rows, window=chunk):
        outputs.append(translation)
        if len(outputs) % chunk == 0 or len(outputs) == len(sources):
            progress(len(outputs), len(sources))
    return outputs, time.perf_counter() - start_time


def report(
    outputs: Sequence[Translation],
    references: Sequence[str],
    calls: int,
    rescored: int,
    seconds: float,
) -> Report:
    """Compute the figures of translations against their references.

    Args:
        outputs: the translations, at least one.
        references: their references, in the same order.
        calls: model calls of the search.
        rescored: model calls of re-scoring.
        seconds: the time it took.
    """
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF

    texts = [output.text for output in outputs]
    bleu, chrf = BLEU(), CHRF()
    bleu_score = bleu.corpus_score(texts, [list(references)])
    chrf_score = chrf.corpus_score(texts, [list(references)])
    return Report(
        sentences=len(outputs),
        nll=-sum(output.log_prob for output in outputs) / len(outputs),
        bleu=bleu_score.score,
        chrf=chrf_score.score,
        length_ratio=bleu_score.sys_len / max(1, bleu_score.ref_len),
        distinct_1=distinct(texts, 1),
        distinct_2=distinct(texts, 2),
        unique=sum(map(distinct_texts, outputs)) / len(outputs),
        finished=sum(output.hypothesis.finished for output in outputs) / len(outputs),
        calls=calls,
        rescored=rescored,
        seconds=seconds,
        signature=outputs[0].signature,
        bleu_signature=str(bleu.get_signature()),
        chrf_signature=str(chrf.get_signature()),
    )


def distinct_texts(translation: Translation) -> int:
    """Return the number of distinct texts among a translation and its alternatives."""
    return len({hypothesis.text for hypothesis in (translation, *translation.alternatives)})


def distinct(texts: Iterable[str], n: int) -> float:
    """Return distinct word n-grams over all word n-grams (Li et al., 2016); 0 if there are none."""
    ngrams = [
        tuple(words[i : i + n])
        for words in map(str.split, texts)
        for i in range(len(words) - n + 1)
    ]
    return len(set(ngrams)) / len(ngrams) if ngrams else 0.0
