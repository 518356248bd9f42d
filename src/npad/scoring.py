"""The front door to scoring: the clean log-probability of given targets."""

from __future__ import annotations

from collections.abc import Sequence
from operator import index
from typing import Any

import torch

from npad.engine.cost import counting
from npad.engine.devices import current_device
from npad.engine.memory import out_of_memory_errors
from npad.errors import InvalidInput
from npad.model import Model, device_of, ensure_length, ensure_model
from npad.rescoring.strategies import rescore
from npad.search.hypotheses import Found

Targets = Sequence[Sequence[Sequence[int]]]


def score(model: Model[Any], source: Any, targets: Targets) -> list[list[float]]:
    """Return the clean log-probability of targets, the end token included.

    Args:
        model: any model.
        source: what the model's `start` understands, with a length.
        targets: targets[s] are token lists for sentence s, without begin and end tokens; the empty
            one is legal and means that the sentence ends at once.

    Returns:
        One number for each target of each sentence.

    Raises:
        InvalidInput: a target is no list of tokens, or one is outside the vocabulary.
        ModelError: a row of logits was no distribution.
    """
    ensure_model(model)
    sentences = ensure_length(source)
    if ensure_length(targets, "targets") != sentences:
        raise InvalidInput(
            f"targets must hold one list a sentence: there are {sentences} sentences, not {len(targets)}"
        )
    checked = [
        _token_lists(sentence_targets, f"targets[{s}]", model.special.eos)
        for s, sentence_targets in enumerate(targets)
    ]
    most = max(map(len, checked), default=0)
    if most == 0:
        return [[] for _ in checked]
    device = device_of(model)
    with counting(model), torch.inference_mode(), current_device(device), out_of_memory_errors():
        distinct = _as_found(checked, most, model.special.pad).distinct()
        rescored = rescore(model, model.start(source), distinct.found)
        log_prob = rescored.log_prob.gather(1, distinct.places)
    return [row[: len(own)] for row, own in zip(log_prob.tolist(), checked, strict=True)]


def _token_lists(targets: Sequence[Sequence[int]], where: str, eos: int) -> list[list[int]]:
    """Return the targets of one sentence as lists of integers from 0, none of them the end."""
    try:
        checked = [[index(token) for token in target] for target in targets]
    except TypeError as error:
        raise InvalidInput(
            f"{where} must be a list of targets, each a list of tokens, such as the tokens of hypotheses: {error}"
        ) from error
    for i, target in enumerate(checked):
        if min(target, default=0) < 0:
            raise InvalidInput(f"{where}[{i}] is {target}; tokens count from 0")
        if max(target, default=0) >= 1 << 63:
            raise InvalidInput(f"token {max(target)} of {where}[{i}] is outside any vocabulary")
        if eos in target:
            raise InvalidInput(
                f"{where}[{i}] is {target}; leave out the end token {eos}, which score adds"
            )
    return checked


def _as_found(targets: list[list[list[int]]], most: int, pad: int) -> Found:
    longest = max(len(target) for sentence_targets in targets for target in sentence_targets)
    tokens = torch.full((len(targets), most, longest), pad)
    lengths = torch.full((len(targets), most), -1)
    for s, sentence_targets in enumerate(targets):
        for i, target in enumerate(sentence_targets):
            tokens[s, i, : len(target)] = torch.tensor(target, dtype=torch.long)
            lengths[s, i] = len(target)
    return Found(tokens, lengths, lengths >= 0, torch.zeros(lengths.shape))
