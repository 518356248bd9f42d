"""Re-score hypotheses with the clean model by teacher forcing.

Each strategy uses one of the ways a model may offer: by prefix, in one forced pass, or by steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from npad.engine.deadline import check_deadline
from npad.engine.memory import RowBudget
from npad.errors import InvalidInput, ModelError
from npad.hypotheses import Hypotheses
from npad.model import Capabilities, Model
from npad.rescoring.plan import Rectangle, rectangles, spans
from npad.rescoring.teacher_forcing import read_by_prefix, read_forced, read_stepwise
from npad.rows import IntArray, descending, take


def rescore(
    model: Model[Any], state: Any, hypotheses: Hypotheses, coverage: bool = False
) -> Hypotheses:
    """Return the hypotheses with the clean model's log-probability, on the CPU.

    Args:
        model: the model; its `judge` re-scores if it has one.
        state: one row per sentence; not changed.
        hypotheses: [sentences, n], without duplicates. Clean log-probabilities recorded during the
            search are not computed again.
        coverage: also sum the attention over the tokens of each hypothesis.

    Raises:
        InvalidInput: `coverage` is set and the model does not offer attention.
        ModelError: a row of logits was NaN, +inf or −inf throughout.
    """
    hypotheses = hypotheses.cpu()
    unscored, known = hypotheses.exists, None if coverage else hypotheses.clean_log_prob
    if known is not None:
        unscored = unscored & known.isnan()
        if not bool(unscored.any()):
            return replace(hypotheses, log_prob=known, coverage=None)
    judge = Capabilities.of(model).judge or model
    capabilities = Capabilities.of(judge)
    strategy = strategy_for(capabilities, coverage)
    reads = (hypotheses.lengths + hypotheses.finished).clamp(min=1)
    reads = torch.where(unscored, reads, 0)
    order = descending(reads)
    longest_first, reads = hypotheses.at(order), take(reads, order)
    scored: list[Scores] = []
    # Launch all rectangles before waiting for the first result.
    for rectangle in strategy.parts(reads.numpy(), capabilities.device.type == "cuda"):
        scored += read_rectangle(judge, strategy, state, longest_first, rectangle)
    log_prob = torch.zeros_like(hypotheses.log_prob)
    for scores in scored:
        log_prob = log_prob.to(scores.log_prob.dtype)
        log_prob[scores.sentences[:, None], scores.places] = scores.log_prob.cpu()
    inverse = order.argsort(1)
    attention = take(_joined_coverage(hypotheses, scored), inverse) if coverage else None
    log_prob = take(log_prob, inverse)
    log_prob = log_prob if known is None else torch.where(unscored, log_prob, known)
    if bool((log_prob.isnan() & hypotheses.exists).any()):
        raise ModelError(
            f"{Capabilities.of(model).name} returned NaN, +inf or nothing but −inf "
            "as a row of logits while scoring"
        )
    return replace(hypotheses, log_prob=log_prob, coverage=attention)


class Scores(NamedTuple):
    """The scores of one rectangle of hypotheses."""

    sentences: Tensor  # [s]
    places: Tensor  # [p]
    log_prob: Tensor  # [s, p]
    coverage: Tensor | None  # [s, p, source length]


class Strategy(NamedTuple):
    """A way to read hypotheses, and to cut the work into rectangles for it."""

    # (model, state, hypotheses) -> log p [sentences · n] and coverage
    read: Callable[[Model[Any], Any, Hypotheses], tuple[Tensor, Tensor | None]]
    # (reads [sentences, n], whether the model is on a GPU) -> rectangles
    parts: Callable[[IntArray, bool], Iterator[Rectangle]]


def strategy_for(capabilities: Capabilities, coverage: bool) -> Strategy:
    """Return the fastest strategy that a model supports."""
    if coverage and capabilities.attention is None:
        raise InvalidInput(
            f"coverage needs attention, which {capabilities.name} does not offer; use beta=0"
        )
    if coverage:
        return COVERING
    if capabilities.prefix_reader is not None:
        return BY_PREFIX
    return STEPWISE if capabilities.forced is None else FORCED


def read_rectangle(
    model: Model[Any], strategy: Strategy, state: Any, hypotheses: Hypotheses, rectangle: Rectangle
) -> list[Scores]:
    """Score a rectangle; out of memory, halve its sentences, then its places."""
    check_deadline()
    of_sentences = RowBudget()

    def read(places: Sequence[int]) -> list[Scores]:
        work = partial(_read_together, model, strategy, state, hypotheses, places)
        return of_sentences.run(work, rectangle.groups.tolist())

    return RowBudget().run(read, range(rectangle.places.start, rectangle.places.stop))


def _read_together(
    model: Model[Any],
    strategy: Strategy,
    state: Any,
    hypotheses: Hypotheses,
    places: Sequence[int],
    sentences: Sequence[int],
) -> list[Scores]:
    rows, columns = torch.tensor(sentences), torch.tensor(places)
    part = hypotheses.groups(rows).at(columns.expand(len(rows), -1))
    if not part.exists.any():
        return []
    selected = model.select(state, rows.to(Capabilities.of(model).device))
    log_prob, coverage = strategy.read(model, selected, part)
    shape = len(rows), len(columns)
    if coverage is not None:
        coverage = coverage.view(*shape, -1)
    return [Scores(rows, columns, log_prob.view(shape), coverage)]


def _joined_coverage(hypotheses: Hypotheses, scored: list[Scores]) -> Tensor:
    """Join the coverage of all rectangles: [sentences, n, longest source]."""
    parts = [scores.coverage for scores in scored if scores.coverage is not None]
    longest = max((part.shape[-1] for part in parts), default=0)
    joined = torch.zeros(*hypotheses.lengths.shape, longest)
    for scores in scored:
        if scores.coverage is not None:
            joined = joined.to(scores.coverage.dtype)
            place = scores.sentences[:, None], scores.places, slice(scores.coverage.shape[-1])
            joined[place] = scores.coverage.cpu()
    return joined


def cut_for_steps(reads: IntArray, on_gpu: bool) -> Iterator[Rectangle]:
    """Cut for `read_stepwise`, which holds logits [rows, V].

    A GPU pays for every launched step, so it gets few rectangles.
    """
    return rectangles(reads, max_area=math.inf, step_cost=2048 if on_gpu else 8)


def cut_for_positions(reads: IntArray, on_gpu: bool) -> Iterator[Rectangle]:
    """Cut for `read_forced`, which holds logits [rows, T, V]."""
    max_area, step_cost = (1 << 17, 256) if on_gpu else (1 << 12, 8)
    return rectangles(reads, max_area, step_cost)


def cut_for_sentences(reads: IntArray, on_gpu: bool) -> Iterator[Rectangle]:
    """Cut for `read_by_prefix`, between sentences.

    A CPU gets small parts, since more rows make it no faster.
    """
    counts = (reads > 0).sum(1)
    for _, sentences in spans(counts.tolist(), 1 << 15 if on_gpu else 1 << 10):
        if counts[sentences].any():
            groups = np.arange(len(reads))[sentences]
            yield Rectangle(groups, slice(0, int(counts[sentences].max())))


STEPWISE = Strategy(read_stepwise, cut_for_steps)
COVERING = Strategy(partial(read_stepwise, coverage=True), cut_for_steps)
FORCED = Strategy(read_forced, cut_for_positions)
BY_PREFIX = Strategy(read_by_prefix, cut_for_sentences)
