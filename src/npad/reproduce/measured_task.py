"""Tasks whose outputs are measured: their units, metrics, and what a report says about them."""

from __future__ import annotations

from dataclasses import dataclass

from npad.metrics.bleu import Bleu
from npad.metrics.captions import Bleu4, Cider
from npad.metrics.metric import Metric
from npad.metrics.wer import Wer


@dataclass(frozen=True)
class Task:
    """A task that decoders are measured on.

    Attributes:
        name: as setup.json has it.
        unit: a source, in words.
        metrics: the first is the one that choices are made by.
        legend: what the metrics are, in words.
        valid_seeds: seeds on the validation set; as many as on the others if None. Choices are
            made with the first.
    """

    name: str
    unit: str
    metrics: tuple[Metric, ...]
    legend: str
    valid_seeds: int | None = None

    @property
    def measures(self) -> str:
        """NLL and the names of the metrics, in words."""
        *names, last = ["NLL", *(metric.title for metric in self.metrics)]
        return f"{', '.join(names)} and {last}"


# The committed reports contain these texts: keep their lines as they are.
TRANSLATION = Task(
    "translation",
    "sentence",
    (Bleu(),),
    "BLEU is sacrebleu's,\nof detokenised text, with its defaults.",
)
CAPTION = Task(
    "caption",
    "picture",
    (Cider(scale=100), Bleu4()),
    "CIDEr-D (times 100)\nand BLEU-4 are against all references of a picture, "
    "as captioning papers have them.",
    valid_seeds=1,
)
SPEECH = Task(
    "speech",
    "recording",
    (Wer(),),
    "WER is the word error rate in per cent,\nof normalised English; lower is better.",
    valid_seeds=1,
)
TASKS = {task.name: task for task in (TRANSLATION, CAPTION, SPEECH)}
