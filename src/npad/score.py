"""The clean judge: log-probability of given hypotheses, teacher-forced, end symbol included, each one once."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from operator import index
from typing import Any, NamedTuple

import torch
from torch import Tensor

from npad.devices import on, sent
from npad.errors import InvalidInput, ModelError, OutOfMemory
from npad.hypotheses import Found
from npad.memory import halved, plain_memory_errors
from npad.model import Model, device_of, ensure_known, ensure_length, ensure_model, name_of, optional
from npad.prediction import Prediction
from npad.ragged import rectangles
from npad.rows import descending, repeat, take


def score(model: Model[Any], source: Any, targets: Sequence[Sequence[Sequence[int]]]) -> list[list[float]]:
    """The clean log-probability of each of targets[s], the end symbol included, for every sentence s of the source.

    Targets carry no begin or end symbol; the empty one is legal and means that the sentence ends at once.
    """
    ensure_model(model)
    sentences = ensure_length(source)
    if ensure_length(targets, "targets") != sentences:
        raise InvalidInput(
            f"targets must hold one list a sentence: there are {sentences} sentences, not {len(targets)}"
        )
    targets = [_symbols(wanted, f"targets[{s}]", model.special.eos) for s, wanted in enumerate(targets)]
    most = max(map(len, targets), default=0)
    if most == 0:
        return [[] for _ in targets]
    with torch.inference_mode(), on(device_of(model)), plain_memory_errors():
        given, went = _as_found(model, targets, most).distinct()
        log_prob = judge(model, model.start(source), given)[0].gather(1, went)
    return [row[: len(wanted)] for row, wanted in zip(log_prob.tolist(), targets, strict=True)]


def judge(model: Model[Any], state: Any, found: Found, coverage: bool = False) -> tuple[Tensor, Tensor | None]:
    """log p of each hypothesis [sentences, n] from the clean state of its sentence, which is left as it was.

    With `coverage`, also the attention summed over each one's symbols [sentences, n, source length]. Both on the CPU.
    """
    model = getattr(model, "judge", model)
    if coverage and not optional(model, "attention"):
        raise InvalidInput(f"coverage needs attention, which {name_of(model)} does not offer; use beta=0")
    way = COVERING if coverage else next((way for way in WAYS if optional(model, way.needs)), STEPWISE)
    found = found.cpu()
    reads = torch.where(found.exists, (found.lengths + found.finished).clamp(min=1), 0)
    order = descending(reads)
    found, reads = found.at(order), take(reads, order)
    parts = rectangles(reads.numpy(), *(way.on_gpu if device_of(model).type == "cuda" else way.on_cpu))
    scored = [
        one
        for some, places in parts
        for one in _read(model, state, found, torch.from_numpy(some), torch.arange(places.start, places.stop), way)
    ]
    log_prob, seen = torch.zeros_like(found.log_prob), None
    for some, places, scores, weights in scored:  # by now the GPU is at work on all of them
        log_prob = log_prob.to(scores.dtype)
        log_prob[some[:, None], places] = scores.cpu().view(len(some), -1)
        if weights is not None:
            seen = torch.zeros(*found.lengths.shape, weights.shape[-1], dtype=weights.dtype) if seen is None else seen
            seen[some[:, None], places] = weights.cpu().view(len(some), len(places), -1)
    if bool((log_prob.isnan() & found.exists).any()):
        raise ModelError(f"{name_of(model)} returned NaN, +inf or nothing but −inf as a row of logits while scoring")
    back = order.argsort(1)
    return take(log_prob, back), None if seen is None else take(seen, back)


Scored = tuple[Tensor, Tensor, Tensor, Tensor | None]  # some sentences, some places, their scores, their attention


def _read(model: Model[Any], state: Any, found: Found, some: Tensor, places: Tensor, way: Way) -> list[Scored]:
    """Score one rectangle, the hypotheses at `places` of `some` sentences; in halves where it does not fit."""
    device = device_of(model)
    try:
        with plain_memory_errors():
            here = model.select(state, some.to(device))  # dropping and expanding are calls of their own
            here = model.select(here, repeat(len(some), len(places), device))
            given = _teacher(model, found.groups(some).at(places.expand(len(some), -1)))
            return [(some, places, *way.read(model, here, *given, device))]
    except OutOfMemory:
        if len(places) > 1:
            halves = [(some, half) for half in places.chunk(2)]
        elif len(some) > 1:
            halves = [(half, places) for half in some.chunk(2)]
        else:
            raise
        halved()
    return [part for half in halves for part in _read(model, state, found, *half, way)]


Result = tuple[Tensor, Tensor | None]


def _stepwise(
    model: Model[Any],
    state: Any,
    inputs: Tensor,
    outputs: Tensor,
    reads: Tensor,
    device: torch.device,
    coverage: bool = False,
) -> Result:
    inputs, outputs, counted = (x.to(device) for x in (inputs, outputs, _counted(inputs, reads)))
    total: Tensor | float = 0.0
    seen: Tensor | float = 0.0
    for t in range(inputs.shape[1]):
        logits, state = model.step(state, inputs[:, t])
        predicted = Prediction.of(model, logits, len(inputs))
        if t == 0:
            ensure_known(model, outputs, predicted.logits.shape[-1])
        total = total + predicted.at(outputs[:, t, None]).squeeze(1).masked_fill(~counted[:, t], 0)
        if coverage:
            seen = seen + optional(model, "attention")(state).masked_fill(~counted[:, t, None], 0)
    assert isinstance(total, Tensor)
    return total, seen if isinstance(seen, Tensor) else None


def _forced(
    model: Model[Any], state: Any, inputs: Tensor, outputs: Tensor, reads: Tensor, device: torch.device
) -> Result:
    inputs, outputs, counted = (x.to(device) for x in (inputs, outputs, _counted(inputs, reads)))
    logits: object = optional(model, "forced")(state, inputs)
    if not isinstance(logits, Tensor) or logits.shape[:2] != inputs.shape or logits.dim() != 3:
        got = list(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        raise ModelError(f"{name_of(model)}.forced must return logits {[*inputs.shape, 'V']}, not {got}")
    predicted = Prediction.of(model, logits.flatten(0, 1), inputs.numel())
    ensure_known(model, outputs, logits.shape[-1])
    scored = predicted.at(outputs.reshape(-1, 1)).view(outputs.shape)
    return scored.masked_fill(~counted, 0).sum(1), None


def _likely(
    model: Model[Any], state: Any, inputs: Tensor, outputs: Tensor, reads: Tensor, device: torch.device
) -> Result:
    scored, _ = optional(model, "likelihood")(state, inputs, outputs, reads)
    return scored.masked_fill(sent(~_counted(inputs, reads), device), 0).sum(1), None


class Way(NamedTuple):
    """How hypotheses are read, where a model offers what it needs."""

    needs: str
    read: Callable[..., Result]
    on_cpu: tuple[float, int]  # positions at a time, and rows that an extra step costs: see `rectangles`
    on_gpu: tuple[float, int]  # which has to wait for each step, so that fewer and larger ones are better


STEPWISE = Way("step", _stepwise, (math.inf, 8), (math.inf, 2048))  # which holds logits [rows, V]
COVERING = STEPWISE._replace(needs="attention", read=partial(_stepwise, coverage=True))
WAYS = (
    Way("likelihood", _likely, (1 << 12, 8), (1 << 20, 2048)),  # [rows, T] readouts
    Way("forced", _forced, (1 << 12, 8), (1 << 17, 256)),  # logits [rows, T, V]
)


def _counted(inputs: Tensor, reads: Tensor) -> Tensor:
    """Which positions [rows, T] count."""
    return torch.arange(inputs.shape[1]) < reads[:, None]


def _teacher(model: Model[Any], found: Found) -> tuple[Tensor, Tensor, Tensor]:
    """What is read and what is predicted, each [rows, longest + 1], and how much of it counts [rows]."""
    bos, eos, _ = model.special
    lengths, tokens = found.lengths.clamp(min=0).flatten(), found.tokens.flatten(0, 1)
    reads = lengths + (found.finished & found.exists).flatten()
    beyond = torch.arange(tokens.shape[1]) >= lengths[:, None]
    tokens = tokens.masked_fill(beyond, eos)  # fill with a symbol that every model can read
    first, last = (torch.full_like(lengths, symbol)[:, None] for symbol in (bos, eos))
    longest = max(1, int(reads.max()))
    return torch.cat([first, tokens], 1)[:, :longest], torch.cat([tokens, last], 1)[:, :longest], reads


def _symbols(wanted: Sequence[Sequence[int]], where: str, eos: int) -> list[list[int]]:
    """The targets of one sentence as lists of integers from 0, none of them the end symbol."""
    try:
        targets = [[index(symbol) for symbol in target] for target in wanted]
    except TypeError as error:
        rule = f"{where} must be a list of targets, each a list of symbols, such as the tokens of hypotheses"
        raise InvalidInput(f"{rule}: {error}") from error
    for i, target in enumerate(targets):
        if min(target, default=0) < 0:
            raise InvalidInput(f"{where}[{i}] is {target}; symbols count from 0")
        if max(target, default=0) >= 1 << 63:
            raise InvalidInput(f"symbol {max(target)} of {where}[{i}] is outside any vocabulary")
        if eos in target:
            raise InvalidInput(f"{where}[{i}] is {target}; leave out the end symbol {eos}, which score adds")
    return targets


def _as_found(model: Model[Any], targets: Sequence[Sequence[Sequence[int]]], most: int) -> Found:
    longest = max(len(target) for wanted in targets for target in wanted)
    tokens = torch.full((len(targets), most, longest), model.special.pad)
    lengths = torch.full((len(targets), most), -1)
    for s, wanted in enumerate(targets):
        for i, target in enumerate(wanted):
            tokens[s, i, : len(target)] = torch.tensor(target, dtype=torch.long)
            lengths[s, i] = len(target)
    return Found(tokens, lengths, lengths >= 0, torch.zeros(lengths.shape))
