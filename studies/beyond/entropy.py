"""Entropy of a model's next-token predictions, by step of its greedy outputs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from npad.hypotheses import Hypothesis
from npad.model import Model, device_of
from npad.pipelines.translation import Translator
from npad.search.greedy import Greedy

BATCH_SENTENCES = 256  # sentences at a time


def entropy_by_step(
    translator: Translator, sources: Sequence[str], max_length: int = 200
) -> list[tuple[float, int]]:
    """Return the mean entropy of the predictions at each step of the greedy outputs.

    Predicting the end token is a step; finished outputs have no further steps.

    Args:
        translator: the model.
        sources: texts; blank ones are skipped.
        max_length: longest output in tokens, end token included.

    Returns:
        The mean entropy in nats and the number of outputs at each step.
    """
    texts = sorted((text for text in sources if text.strip()), key=len)
    translations = translator.translate(texts, Greedy(), max_length)
    batches = (
        (
            translator.encode(texts[start : start + BATCH_SENTENCES]),
            [each.hypothesis for each in translations[start : start + BATCH_SENTENCES]],
        )
        for start in range(0, len(texts), BATCH_SENTENCES)
    )
    return entropy_along(translator.model, batches)


def entropy_along(
    model: Model[Any], batches: Iterable[tuple[Any, Sequence[Hypothesis]]]
) -> list[tuple[float, int]]:
    """Return the mean entropy at each step of given outputs, as `entropy_by_step` does.

    Args:
        model: the model.
        batches: sources, and the output of each.
    """
    sums: dict[int, float] = {}
    counts: dict[int, int] = {}
    for source, hypotheses in batches:
        inputs = [  # a finished output has one more prediction: that of the end token
            (model.special.bos, *hypothesis.tokens)[: len(hypothesis.tokens) + hypothesis.finished]
            for hypothesis in hypotheses
        ]
        with torch.inference_mode():
            state = model.start(source)
            for t in range(max(map(len, inputs))):
                tokens = [row[t] if t < len(row) else model.special.eos for row in inputs]
                logits, state = model.step(state, torch.tensor(tokens, device=device_of(model)))
                log_probs = logits.double().log_softmax(-1)
                finite = log_probs.masked_fill(log_probs == -torch.inf, 0)
                entropy = -(log_probs.exp() * finite).sum(-1)  # [rows]
                live = [i for i, row in enumerate(inputs) if t < len(row)]
                sums[t] = sums.get(t, 0.0) + entropy[live].sum().item()
                counts[t] = counts.get(t, 0) + len(live)
    return [(sums[t] / counts[t], counts[t]) for t in sorted(sums)]
