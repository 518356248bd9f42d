"""What the clean model thinks of each token of given hypotheses, and where it looks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from npad.engine.devices import current_device
from npad.engine.memory import out_of_memory_errors
from npad.engine.next_token import Prediction
from npad.model import Capabilities, Model
from npad.rescoring.teacher_forcing import TeacherForcing, expand_rows
from npad.search.hypotheses import Hypotheses, Hypothesis

LOG_PROB_DIGITS, WEIGHT_DIGITS = 6, 4  # decimals that are sent


class Reading(NamedTuple):
    """A hypothesis as the clean model reads it; the end token comes last if it is finished."""

    token_log_probs: list[float | None]  # None: impossible
    attention: list[list[float]] | None  # source weights of each token; None: not offered


def read_tokens(model: Model[Any], source: Any, hypotheses: Sequence[Hypothesis]) -> list[Reading]:
    """Read hypotheses of one sentence, step by step, with the clean model.

    Args:
        model: the model; its `judge` reads if it has one.
        source: the sentence, in the form that the model's `start` takes.
        hypotheses: of that sentence.
    """
    if not hypotheses:
        return []
    judge = Capabilities.of(model).judge or model
    capabilities = Capabilities.of(judge)
    batch = Hypotheses.from_list(hypotheses)
    teacher = TeacherForcing.of(batch, model.special.bos, model.special.eos)
    gains: list[Tensor] = []
    weights: list[Tensor] = []
    with torch.inference_mode(), current_device(capabilities.device), out_of_memory_errors():
        state = expand_rows(judge, model.start(source), batch.lengths.shape)
        inputs, targets, _ = teacher.rows(capabilities.device)
        for t in range(inputs.shape[1]):
            logits, state = judge.step(state, inputs[:, t])
            predicted = Prediction.of(judge, logits, len(inputs), capabilities.normalised)
            gains.append(predicted.at(targets[:, t, None]).squeeze(1).cpu())
            if capabilities.attention is not None:
                weights.append(capabilities.attention(state).cpu())
    log_probs = torch.stack(gains, 1).tolist()
    attention = torch.stack(weights, 1).tolist() if weights else [None] * len(log_probs)
    return [
        Reading(
            [rounded(value, LOG_PROB_DIGITS) for value in row[:count]],
            None
            if looked is None
            else [[round(weight, WEIGHT_DIGITS) for weight in step] for step in looked[:count]],
        )
        for row, looked, count in zip(log_probs, attention, teacher.reads[0].tolist(), strict=True)
    ]


def rounded(value: float, digits: int) -> float | None:
    """Round a number; None if it is not finite, which JSON cannot hold."""
    return round(value, digits) if math.isfinite(value) else None
