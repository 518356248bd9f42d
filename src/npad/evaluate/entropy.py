"""How sure a model is of its next symbol, by the place of that symbol in the output."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from npad.model import device_of
from npad.pipelines.translation import Translator
from npad.search.greedy import Greedy

BATCH = 256  # sentences at a time


def entropy_by_step(
    translator: Translator, sources: Sequence[str], max_length: int = 200
) -> list[tuple[float, int]]:
    """For each step along the model's greedy outputs, the mean entropy of its prediction in nats, and of how many.

    The prediction of the end symbol counts as a step; an output that is over counts no more.
    """
    model = translator.model
    texts = sorted((text for text in sources if text.strip()), key=len)
    outputs = translator.translate(texts, Greedy(), max_length)
    sums: dict[int, float] = {}
    counts: dict[int, int] = {}
    for start in range(0, len(texts), BATCH):
        read = [
            (model.special.bos, *one.hypothesis.tokens)[
                : len(one.hypothesis.tokens) + one.hypothesis.finished
            ]
            for one in outputs[start : start + BATCH]
        ]
        with torch.inference_mode():
            state = model.start(translator.encode(texts[start : start + BATCH]))
            for t in range(max(map(len, read))):
                tokens = [each[t] if t < len(each) else model.special.eos for each in read]
                logits, state = model.step(state, torch.tensor(tokens, device=device_of(model)))
                p = logits.double().log_softmax(-1)
                entropy = -(p.exp() * p.masked_fill(p == -torch.inf, 0)).sum(-1)
                going = [i for i, each in enumerate(read) if t < len(each)]
                sums[t] = sums.get(t, 0.0) + entropy[going].sum().item()
                counts[t] = counts.get(t, 0) + len(going)
    return [(sums[t] / counts[t], counts[t]) for t in sorted(sums)]
