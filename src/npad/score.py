"""The clean judge: log-probability of given hypotheses, teacher-forced, end symbol included, each one once."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from operator import index
from typing import Any

import torch
from torch import Tensor

from npad.devices import on
from npad.errors import InvalidInput, ModelError, OutOfMemory
from npad.hypotheses import Found
from npad.memory import halved, plain_memory_errors
from npad.model import Model, device_of, ensure_known, ensure_length, ensure_model, name_of, optional
from npad.prediction import Prediction
from npad.ragged import rectangles
from npad.rows import descending, repeat, take

POSITIONS = 1 << 12  # symbols scored at a time by a model that does it in one go: bounds its logits [rows, T, V]
SPARE = 8  # rows: what an extra step of the model costs
MORE = 32  # times as many positions on a GPU, and rows, which has to wait for each step


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

    With `coverage`, also the attention summed over each one's symbols [sentences, n, source length].
    """
    model = getattr(model, "judge", model)
    if coverage and not optional(model, "attention"):
        raise InvalidInput(f"coverage needs attention, which {name_of(model)} does not offer; use beta=0")
    ways = {"likelihood": _likely, "forced": _forced}
    way = next((way for part, way in ways.items() if optional(model, part) and not coverage), _stepwise)
    read = partial(way, model, coverage=coverage)
    log_prob, seen = torch.zeros_like(found.log_prob), None
    reads = torch.where(found.exists, (found.lengths + found.finished).clamp(min=1), 0)
    order = descending(reads)
    found = found.at(order)
    for part in _parts(take(reads, order), bounded=way is not _stepwise):
        for some, places, scored, weights in _read(model, state, found, *part, read):
            log_prob = log_prob.to(scored.dtype)
            log_prob[some[:, None], places] = scored.view(len(some), -1)
            if weights is not None:
                seen = weights.new_zeros(*found.lengths.shape, weights.shape[-1]) if seen is None else seen
                seen[some[:, None], places] = weights.view(len(some), len(places), -1)
    if bool((log_prob.isnan() & found.exists).any()):
        raise ModelError(f"{name_of(model)} returned NaN, +inf or nothing but −inf as a row of logits while scoring")
    back = order.argsort(1)
    return take(log_prob, back), None if seen is None else take(seen, back)


def _read(
    model: Model[Any], state: Any, found: Found, some: Tensor, places: Tensor, read: Callable[..., Any]
) -> list[tuple[Tensor, Tensor, Tensor, Tensor | None]]:
    """Score one rectangle, the hypotheses at `places` of `some` sentences; in halves where it does not fit."""
    try:
        with plain_memory_errors():
            here = model.select(state, some)  # dropping and expanding are calls of their own
            here = model.select(here, repeat(len(some), len(places), some.device))
            return [(some, places, *read(state=here, found=found.groups(some).at(places.expand(len(some), -1))))]
    except OutOfMemory:
        if len(places) > 1:
            halves = [(some, half) for half in places.chunk(2)]
        elif len(some) > 1:
            halves = [(half, places) for half in some.chunk(2)]
        else:
            raise
        halved()
    return [part for half in halves for part in _read(model, state, found, *half, read)]


def _parts(reads: Tensor, bounded: bool) -> Iterator[tuple[Tensor, Tensor]]:
    """The work in rectangles of hypotheses about as long; reads [sentences, n]: the symbols of each, longest first.

    In one go a model holds [rows, T, V] logits at a time, so that there the rectangles are bounded; step by step only
    [rows, V].
    """
    device = reads.device
    more = MORE if device.type == "cuda" else 1
    most = POSITIONS * more if bounded else math.inf
    for some, places in rectangles(reads.cpu().numpy(), most, SPARE * more):
        yield torch.from_numpy(some).to(device), torch.arange(places.start, places.stop, device=device)


def _stepwise(model: Model[Any], state: Any, found: Found, coverage: bool) -> tuple[Tensor, Tensor | None]:
    inputs, outputs, counted = _teacher(model, found)
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


def _forced(model: Model[Any], state: Any, found: Found, coverage: bool) -> tuple[Tensor, Tensor | None]:
    inputs, outputs, counted = _teacher(model, found)
    logits: object = optional(model, "forced")(state, inputs)
    if not isinstance(logits, Tensor) or logits.shape[:2] != inputs.shape or logits.dim() != 3:
        got = list(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        raise ModelError(f"{name_of(model)}.forced must return logits {[*inputs.shape, 'V']}, not {got}")
    predicted = Prediction.of(model, logits.flatten(0, 1), inputs.numel())
    ensure_known(model, outputs, logits.shape[-1])
    scored = predicted.at(outputs.reshape(-1, 1)).view(outputs.shape)
    return scored.masked_fill(~counted, 0).sum(1), None


def _likely(model: Model[Any], state: Any, found: Found, coverage: bool) -> tuple[Tensor, Tensor | None]:
    inputs, outputs, counted = _teacher(model, found)
    scored, _ = optional(model, "likelihood")(state, inputs, outputs)
    return scored.masked_fill(~counted, 0).sum(1), None


def _teacher(model: Model[Any], found: Found) -> tuple[Tensor, Tensor, Tensor]:
    """What is read, what is predicted, and which predictions count: each [rows, longest + 1]."""
    bos, eos, _ = model.special
    lengths, tokens = found.lengths.clamp(min=0).flatten(), found.tokens.flatten(0, 1)
    ends = (found.finished & found.exists).flatten()
    place = torch.arange(tokens.shape[1] + 1, device=tokens.device)
    tokens = tokens.masked_fill(place[:-1] >= lengths[:, None], eos)  # fill with a symbol that every model can read
    first, last = (torch.full_like(lengths, symbol)[:, None] for symbol in (bos, eos))
    longest = max(1, int((lengths + ends).max()))
    inputs, outputs = torch.cat([first, tokens], 1)[:, :longest], torch.cat([tokens, last], 1)[:, :longest]
    return inputs, outputs, place[:longest] < (lengths + ends)[:, None]


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
    special, device = model.special, device_of(model)
    longest = max(len(target) for wanted in targets for target in wanted)
    tokens = torch.full((len(targets), most, longest), special.pad)
    lengths = torch.full((len(targets), most), -1)
    for s, wanted in enumerate(targets):
        for i, target in enumerate(wanted):
            tokens[s, i, : len(target)] = torch.tensor(target, dtype=torch.long)
            lengths[s, i] = len(target)
    zeros = torch.zeros(lengths.shape)
    found = Found(tokens, lengths, lengths >= 0, zeros)
    return replace(found, **{f: getattr(found, f).to(device) for f in ("tokens", "lengths", "finished", "log_prob")})
