"""The clean judge: log-probability of given hypotheses, teacher-forced, end symbol included, each one once."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from operator import index
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from npad.engine.devices import on, sent
from npad.engine.memory import halved, plain_memory_errors
from npad.engine.next_token import Prediction
from npad.errors import InvalidInput, ModelError, OutOfMemory
from npad.model import Model, device_of, ensure_known, ensure_length, ensure_model, name_of, optional
from npad.rescoring.packing import rectangles
from npad.rescoring.plan import spans
from npad.search.hypotheses import Found
from npad.search.rows import descending, repeat, take
from npad.search.runs import Rows


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
    scored = [
        one
        for some, places in way.parts(reads.numpy(), device_of(model).type == "cuda")
        for one in _read(model, state, found, torch.from_numpy(some), torch.arange(places.start, places.stop), way)
    ]
    log_prob, seen = torch.zeros_like(found.log_prob), None
    if coverage:
        longest = max((weights.shape[-1] for *_, weights in scored if weights is not None), default=0)
        seen = torch.zeros(*found.lengths.shape, longest)
    for some, places, scores, weights in scored:  # by now the GPU is at work on all of them
        log_prob = log_prob.to(scores.dtype)
        log_prob[some[:, None], places] = scores.cpu().view(len(some), -1)
        if seen is not None and weights is not None:
            seen = seen.to(weights.dtype)
            seen[some[:, None], places, : weights.shape[-1]] = weights.cpu().view(len(some), len(places), -1)
    if bool((log_prob.isnan() & found.exists).any()):
        raise ModelError(f"{name_of(model)} returned NaN, +inf or nothing but −inf as a row of logits while scoring")
    back = order.argsort(1)
    return take(log_prob, back), None if seen is None else take(seen, back)


Scored = tuple[Tensor, Tensor, Tensor, Tensor | None]  # some sentences, some places, their scores, their attention


def _read(model: Model[Any], state: Any, found: Found, some: Tensor, places: Tensor, way: Way) -> list[Scored]:
    """Score one rectangle, the hypotheses at `places` of `some` sentences; in halves where it does not fit."""
    part = found.groups(some).at(places.expand(len(some), -1))
    if not part.exists.any():
        return []
    try:
        with plain_memory_errors():
            return [(some, places, *way.read(model, model.select(state, some.to(device_of(model))), part))]
    except OutOfMemory:
        if len(places) > 1:
            halves = [(some, half) for half in places.chunk(2)]
        elif len(some) > 1:
            halves = [(half, places) for half in some.chunk(2)]
        else:
            raise
        halved()
    return [one for half in halves for one in _read(model, state, found, *half, way)]


Result = tuple[Tensor, Tensor | None]


def _stepwise(model: Model[Any], state: Any, found: Found, coverage: bool = False) -> Result:
    state, inputs, outputs, counted = _rows(model, state, found)
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


def _forced(model: Model[Any], state: Any, found: Found) -> Result:
    state, inputs, outputs, counted = _rows(model, state, found)
    logits: object = optional(model, "forced")(state, inputs)
    if not isinstance(logits, Tensor) or logits.shape[:2] != inputs.shape or logits.dim() != 3:
        got = list(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        raise ModelError(f"{name_of(model)}.forced must return logits {[*inputs.shape, 'V']}, not {got}")
    predicted = Prediction.of(model, logits.flatten(0, 1), inputs.numel())
    ensure_known(model, outputs, logits.shape[-1])
    scored = predicted.at(outputs.reshape(-1, 1)).view(outputs.shape)
    return scored.masked_fill(~counted, 0).sum(1), None


def _likely(model: Model[Any], state: Any, found: Found) -> Result:
    inputs, outputs, reads = _teacher(model, found)
    least = torch.where(found.exists, reads.clamp(min=1), 0)
    scored, _ = optional(model, "likelihood")(state, inputs, outputs, least)
    return scored.masked_fill(sent(~_counted(inputs, reads), scored.device), 0).sum(-1), None


def _rows(model: Model[Any], state: Any, found: Found) -> tuple[Any, Tensor, Tensor, Tensor]:
    """A row for each hypothesis: its state, what it reads, what it predicts, and which predictions count: [rows, T]."""
    device, (inputs, outputs, reads) = device_of(model), _teacher(model, found)
    sentences, n = found.lengths.shape
    state = model.select(state, repeat(sentences, n, device))  # dropping and expanding are calls of their own
    return state, *(x.flatten(0, 1).to(device) for x in (inputs, outputs, _counted(inputs, reads)))


class Way(NamedTuple):
    """How hypotheses are read, where a model offers what it needs, and how many at a time."""

    needs: str
    read: Callable[..., Result]
    parts: Callable[[Rows, bool], Iterator[tuple[Rows, slice]]]  # of how much each reads, and whether on a GPU


def _steps(reads: Rows, gpu: bool) -> Iterator[tuple[Rows, slice]]:
    """Few, where each step is waited for; there are logits [rows, V] at a time."""
    return rectangles(reads, math.inf, 2048 if gpu else 8)


def _positions(reads: Rows, gpu: bool) -> Iterator[tuple[Rows, slice]]:
    """There are logits [rows, T, V] at a time."""
    return rectangles(reads, 1 << 17 if gpu else 1 << 12, 256 if gpu else 8)


def _sentences(reads: Rows, gpu: bool) -> Iterator[tuple[Rows, slice]]:
    """Whole sentences: of a position there is little, and rows are few where many would not be faster."""
    counts = (reads > 0).sum(1)
    for _, some in spans(counts.tolist(), 1 << 15 if gpu else 1 << 10):
        if counts[some].any():
            yield np.arange(len(reads))[some], slice(0, int(counts[some].max()))


STEPWISE = Way("step", _stepwise, _steps)
COVERING = Way("attention", partial(_stepwise, coverage=True), _steps)
WAYS = (Way("likelihood", _likely, _sentences), Way("forced", _forced, _positions))


def _counted(inputs: Tensor, reads: Tensor) -> Tensor:
    """Which positions [sentences, n, T] count."""
    return torch.arange(inputs.shape[-1]) < reads[..., None]


def _teacher(model: Model[Any], found: Found) -> tuple[Tensor, Tensor, Tensor]:
    """What is read and what is predicted, each [sentences, n, longest], and how much of it counts [sentences, n]."""
    bos, eos, _ = model.special
    lengths = found.lengths.clamp(min=0)
    reads = lengths + (found.finished & found.exists)
    beyond = torch.arange(found.tokens.shape[-1]) >= lengths[..., None]
    tokens = found.tokens.masked_fill(beyond, eos)  # fill with a symbol that every model can read
    first, last = (torch.full_like(lengths, symbol)[..., None] for symbol in (bos, eos))
    longest = max(1, int(reads.max()))
    return torch.cat([first, tokens], -1)[..., :longest], torch.cat([tokens, last], -1)[..., :longest], reads


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
