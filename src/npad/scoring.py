"""`score`, the clean log-probability of given targets."""

from __future__ import annotations

from collections.abc import Sequence
from operator import index
from typing import Any

import torch

from npad.engine.devices import current_device, ensure_device
from npad.engine.memory import out_of_memory_errors
from npad.errors import InvalidInput
from npad.hypotheses import Hypotheses
from npad.model import Model, device_of, ensure_length, ensure_model
from npad.rescoring.strategies import rescore

Targets = Sequence[Sequence[Sequence[int]]]


def score(model: Model[Any], source: Any, targets: Targets) -> list[list[float]]:
    """Return the clean log-probability of targets, the end token included.

    Args:
        model: any model.
        source: the sentences, in the form that the model's `start` takes; has a length.
        targets: targets[s] are token lists for sentence s, without begin and end tokens; an empty
            list stands for the output that ends at once.

    Returns:
        One log-probability for each target of each sentence.

    Raises:
        InvalidInput: a target is not a list of tokens, or a token is outside the vocabulary.
        ModelError: a row of logits was NaN, +inf or −inf throughout.
    """
    ensure_model(model)
    sentences = ensure_length(source)
    if ensure_length(targets, "targets") != sentences:
        raise InvalidInput(
            f"targets must hold one list per sentence: there are {sentences} sentences, "
            f"not {len(targets)}"
        )
    checked = [
        _token_lists(sentence_targets, f"targets[{s}]", model.special.eos)
        for s, sentence_targets in enumerate(targets)
    ]
    max_targets = max(map(len, checked), default=0)
    if max_targets == 0:
        return [[] for _ in checked]
    device = device_of(model)
    with torch.inference_mode(), current_device(device), out_of_memory_errors():
        distinct = _as_hypotheses(checked, max_targets, model.special.pad).distinct()
        state = model.start(source)
        ensure_device(model, state)
        rescored = rescore(model, state, distinct.hypotheses)
        log_prob = rescored.log_prob.gather(1, distinct.places)
    return [
        row[: len(own_targets)] for row, own_targets in zip(log_prob.tolist(), checked, strict=True)
    ]


def _token_lists(targets: Sequence[Sequence[int]], name: str, eos: int) -> list[list[int]]:
    """Return the targets of one sentence as lists of integers from 0, without end tokens."""
    try:
        checked = [[index(token) for token in target] for target in targets]
    except TypeError as error:
        raise InvalidInput(
            f"{name} must be a list of targets, each a list of tokens, "
            f"such as the tokens of hypotheses: {error}"
        ) from error
    for i, target in enumerate(checked):
        if min(target, default=0) < 0:
            raise InvalidInput(f"{name}[{i}] is {target}; tokens count from 0")
        if max(target, default=0) >= 1 << 63:
            raise InvalidInput(f"token {max(target)} of {name}[{i}] is outside any vocabulary")
        if eos in target:
            raise InvalidInput(
                f"{name}[{i}] is {target}; leave out the end token {eos}, which score adds"
            )
    return checked


def _as_hypotheses(targets: list[list[list[int]]], width: int, pad: int) -> Hypotheses:
    """Return targets as tensors, padded to `width` places per sentence."""
    longest = max(len(target) for sentence_targets in targets for target in sentence_targets)
    tokens = torch.full((len(targets), width, longest), pad)
    lengths = torch.full((len(targets), width), -1)
    for s, sentence_targets in enumerate(targets):
        for i, target in enumerate(sentence_targets):
            tokens[s, i, : len(target)] = torch.tensor(target, dtype=torch.long)
            lengths[s, i] = len(target)
    return Hypotheses(tokens, lengths, lengths >= 0, torch.zeros(lengths.shape))
