"""One decoder on one test set: how probable its output is, how good, how varied, and what it cost."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from npad.engine.cost import count_calls
from npad.errors import InvalidInput
from npad.pipelines.translation import Translation, Translator
from npad.search.decoder import Decoder

CHUNK = 1000  # sentences between two signs of life


@dataclass(frozen=True)
class Report:
    """The figures of one decoder on one test set."""

    sentences: int
    nll: float  # mean over sentences of −log p of the output under the clean model, end symbol included
    bleu: float
    chrf: float
    length_ratio: float  # words of output over words of reference, as sacrebleu counts them
    distinct_1: float  # different words over words of output, all sentences together
    distinct_2: float  # the same of pairs of words
    unique: float  # different texts among the hypotheses of a sentence, on average
    finished: float  # share of outputs that ended by themselves
    calls: int  # rows through one step of the model
    rescored: int  # the same, by the clean judge
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
    """Translate a test set and measure; the translations come along, in order."""
    if len(sources) != len(references):
        raise InvalidInput(
            f"there are {len(sources):,} sources and {len(references):,} references; they must be pairs"
        )
    if not sources:
        raise InvalidInput("there is nothing to evaluate: the test set is empty")
    for i, size in translator.too_long(sources).items():
        raise InvalidInput(
            f"source {i + 1} has {size} and {translator.longest:,} symbols are allowed; split it"
        )
    with count_calls() as calls:
        outputs, seconds = translated(
            translator, sources, decoder, max_length, max_rows, progress, CHUNK
        )
    return report(outputs, references, calls.search, calls.rescoring, seconds), outputs


def translated(
    translator: Translator,
    sources: Sequence[str],
    decoder: Decoder,
    max_length: int = 200,
    max_rows: int = 1024,
    progress: Callable[[int, int], None] = lambda done, total: None,
    chunk: int | None = None,
) -> tuple[list[Translation], float]:
    """The translations of a test set, and the seconds they took; `chunk` sentences between two signs of life."""
    outputs: list[Translation] = []
    chunk = chunk or max(1, len(sources))
    began = time.perf_counter()
    for start in range(0, len(sources), chunk):
        outputs += translator.translate(
            sources[start : start + chunk], decoder, max_length, max_rows
        )
        progress(len(outputs), len(sources))
    return outputs, time.perf_counter() - began


def report(
    outputs: Sequence[Translation],
    references: Sequence[str],
    calls: int,
    rescored: int,
    seconds: float,
) -> Report:
    """The figures of some translations."""
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF

    texts = [output.text for output in outputs]
    bleu, chrf = BLEU(), CHRF()
    bleu_score, chrf_score = (
        bleu.corpus_score(texts, [list(references)]),
        chrf.corpus_score(texts, [list(references)]),
    )
    return Report(
        sentences=len(outputs),
        nll=-sum(output.log_prob for output in outputs) / len(outputs),
        bleu=bleu_score.score,
        chrf=chrf_score.score,
        length_ratio=bleu_score.sys_len / max(1, bleu_score.ref_len),
        distinct_1=distinct(texts, 1),
        distinct_2=distinct(texts, 2),
        unique=sum(len({one.text for one in (output, *output.alternatives)}) for output in outputs)
        / len(outputs),
        finished=sum(output.hypothesis.finished for output in outputs) / len(outputs),
        calls=calls,
        rescored=rescored,
        seconds=seconds,
        signature=outputs[0].signature,
        bleu_signature=str(bleu.get_signature()),
        chrf_signature=str(chrf.get_signature()),
    )


def distinct(texts: Iterable[str], n: int) -> float:
    """Different n-grams of words over n-grams (Li et al., 2016); 0 where there are none."""
    grams = [
        tuple(words[i : i + n])
        for words in map(str.split, texts)
        for i in range(len(words) - n + 1)
    ]
    return len(set(grams)) / len(grams) if grams else 0.0
