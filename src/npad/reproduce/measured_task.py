"""Tasks whose outputs are measured: their units, metrics, and what a report says about them.

A metric is computed from counts of each output that add up over a test set, so that a bootstrap
can draw other test sets from them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from npad.evaluate.bleu import Bleu
from npad.evaluate.wer import wer_counts
from npad.text.english import spoken_words

Counts = NDArray[Any]


class Scorer(Protocol):
    """Counts of outputs against the references of a test set."""

    def counts(self, outputs: Sequence[str]) -> Counts:
        """Return the counts of each output, [sentences, k]."""

    @staticmethod
    def score(counts: Counts) -> float:
        """Return the metric from counts summed over sentences, [k]."""

    @staticmethod
    def length_ratio(counts: Counts) -> float:
        """Return output words over reference words, from counts summed over sentences, [k]."""


class WordErrors:
    """Word error rate in per cent; counts are errors, reference words and output words."""

    def __init__(self, references: Sequence[str]) -> None:
        self.references = references

    def counts(self, outputs: Sequence[str]) -> Counts:
        lengths = [len(spoken_words(text)) for text in outputs]
        return np.column_stack([wer_counts(outputs, self.references), lengths])

    @staticmethod
    def score(counts: Counts) -> float:
        return float(100 * counts[0] / max(1, counts[1]))

    @staticmethod
    def length_ratio(counts: Counts) -> float:
        return float(counts[2] / max(1, counts[1]))


class ConsensusScore:
    """CIDEr-D times 100; counts are its sum, captions, their words, and words of a reference."""

    def __init__(self, references: Sequence[Sequence[str]]) -> None:
        from npad.evaluate.captions import Cider, caption_words

        self.cider, self.words = Cider(references), caption_words
        lengths = [[len(caption_words(text)) for text in texts] for texts in references]
        self.lengths = [sum(words) / len(words) for words in lengths]

    def counts(self, outputs: Sequence[str]) -> Counts:
        words = [len(self.words(text)) for text in outputs]
        scores = 100 * self.cider.scores(outputs)
        return np.column_stack([scores, np.ones(len(words)), words, self.lengths])

    @staticmethod
    def score(counts: Counts) -> float:
        return float(counts[0] / max(1, counts[1]))

    @staticmethod
    def length_ratio(counts: Counts) -> float:
        return float(counts[2] / max(1, counts[3]))


def caption_bleu(references: Sequence[Sequence[str]]) -> Scorer:
    """Return a scorer of BLEU-4 against several references."""
    from npad.evaluate.captions import CaptionBleu

    scorer: Scorer = CaptionBleu(references)
    return scorer


@dataclass(frozen=True)
class Metric:
    """A measure of outputs.

    Attributes:
        key: its field in results.jsonl.
        name: the head of its column.
        scorer: a function of the references of a test set.
        higher: whether more is better.
        min_span: of a plot's axis. Two systems of equal quality differ by up to a quarter of it on
            1,000 to 3,000 sentences: a narrower axis would show noise.
    """

    key: str
    name: str
    scorer: Callable[[Any], Scorer]
    higher: bool = True
    min_span: float = 2.0

    @property
    def sign(self) -> int:
        """1 if more is better, else −1."""
        return 1 if self.higher else -1


@dataclass(frozen=True)
class Task:
    """A task that decoders are measured on.

    Attributes:
        name: as setup.json has it.
        unit: a source, in words.
        metrics: the first is the one that choices are made by.
        legend: what the metrics are, in words.
        utility: the utility by which minimum Bayes risk selects.
        valid_seeds: seeds on the validation set; as many as on the others if None. Choices are
            made with the first.
    """

    name: str
    unit: str
    metrics: tuple[Metric, ...]
    legend: str
    utility: str = "chrf"
    valid_seeds: int | None = None

    @property
    def measures(self) -> str:
        """NLL and the names of the metrics, in words."""
        *names, last = ["NLL", *(metric.name for metric in self.metrics)]
        return f"{', '.join(names)} and {last}"


BLEU = Metric("bleu", "BLEU", Bleu)
CIDER = Metric("cider", "CIDEr-D", ConsensusScore, min_span=4.0)
BLEU4 = Metric("bleu4", "BLEU-4", caption_bleu)
WER = Metric("wer", "WER", WordErrors, higher=False, min_span=1.0)

# The committed reports contain these texts: keep their lines as they are.
TRANSLATION = Task(
    "translation",
    "sentence",
    (BLEU,),
    "BLEU is sacrebleu's,\nof detokenised text, with its defaults.",
)
CAPTION = Task(
    "caption",
    "picture",
    (CIDER, BLEU4),
    "CIDEr-D (times 100)\nand BLEU-4 are against all references of a picture, "
    "as captioning papers have them.",
    valid_seeds=1,
)
SPEECH = Task(
    "speech",
    "recording",
    (WER,),
    "WER is the word error rate in per cent,\nof normalised English; lower is better.",
    utility="wer",
    valid_seeds=1,
)
TASKS = {task.name: task for task in (TRANSLATION, CAPTION, SPEECH)}
