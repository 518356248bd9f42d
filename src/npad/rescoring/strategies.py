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

from npad.engine.cost import add_calls
from npad.engine.deadline import check_deadline
from npad.engine.memory import RowBudget
from npad.engine.next_token import Prediction
from npad.errors import InvalidInput, ModelError
from npad.model import Capabilities, Model, ensure_in_vocabulary
from npad.rescoring.by_prefix import read_by_prefix
from npad.rescoring.forced import read_forced
from npad.rescoring.packing import Rectangle, rectangles
from npad.rescoring.plan import spans
from npad.rescoring.teacher_forcing import TeacherForcing, expand_rows
from npad.search.hypotheses import Hypotheses
from npad.search.rows import descending, take
from npad.search.runs import IntArray


def rescore(
    model: Model[Any], state: Any, hypotheses: Hypotheses, coverage: bool = False
) -> Hypotheses:
    """Return the hypotheses with the clean model's log-probability, on the CPU.

    Args:
        model: the model; its `judge` re-scores if it has one.
        state: one row per sentence; not changed.
        hypotheses: [sentences, n], without duplicates. Clean log-probabilities recorded during the
            search (`PairedClean`) are not computed again.
        coverage: also sum the attention over the tokens of each hypothesis.

    Raises:
        InvalidInput: `coverage` is set and the model does not offer attention.
        ModelError: a row of logits was NaN, +inf or −inf throughout.
    """
    hypotheses = hypotheses.cpu()
    if hypotheses.clean_log_prob is not None and not coverage:
        log_prob, attention = hypotheses.clean_log_prob, None
    else:
        judge = Capabilities.of(model).judge or model
        log_prob, attention = Rescorer(judge, coverage).run(state, hypotheses)
    ensure_scored(model, log_prob, hypotheses)
    return replace(hypotheses, log_prob=log_prob, coverage=attention)


def ensure_scored(model: Model[Any], log_prob: Tensor, hypotheses: Hypotheses) -> None:
    """Raise a ModelError if the score of an existing hypothesis is NaN."""
    if bool((log_prob.isnan() & hypotheses.exists).any()):
        raise ModelError(
            f"{Capabilities.of(model).name} returned NaN, +inf or nothing but −inf "
            "as a row of logits while scoring"
        )


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


class Rescorer:
    """Re-scores hypotheses with the fastest strategy that the model supports."""

    def __init__(self, model: Model[Any], coverage: bool) -> None:
        self.model, self.coverage = model, coverage
        self.capabilities = Capabilities.of(model)
        if coverage and self.capabilities.attention is None:
            name = self.capabilities.name
            raise InvalidInput(f"coverage needs attention, which {name} does not offer; use beta=0")
        self.strategy = self._strategy()

    def _strategy(self) -> Strategy:
        if self.coverage:
            return COVERING
        if self.capabilities.prefix_reader is not None:
            return BY_PREFIX
        return STEPWISE if self.capabilities.forced is None else FORCED

    def run(self, state: Any, hypotheses: Hypotheses) -> tuple[Tensor, Tensor | None]:
        """Return log p [sentences, n] and, if enabled, coverage [sentences, n, source length]."""
        reads = (hypotheses.lengths + hypotheses.finished).clamp(min=1)
        reads = torch.where(hypotheses.exists, reads, 0)
        order = descending(reads)
        hypotheses, reads = hypotheses.at(order), take(reads, order)
        on_gpu = self.capabilities.device.type == "cuda"
        # Launch all rectangles before waiting for the first result.
        scored = [
            scores
            for rectangle in self.strategy.parts(reads.numpy(), on_gpu)
            for scores in self._read(state, hypotheses, rectangle)
        ]
        log_prob = torch.zeros_like(hypotheses.log_prob)
        for scores in scored:
            log_prob = log_prob.to(scores.log_prob.dtype)
            log_prob[scores.sentences[:, None], scores.places] = scores.log_prob.cpu()
        inverse = order.argsort(1)
        coverage = take(_joined_coverage(hypotheses, scored), inverse) if self.coverage else None
        return take(log_prob, inverse), coverage

    def _read(self, state: Any, hypotheses: Hypotheses, rectangle: Rectangle) -> list[Scores]:
        """Score a rectangle; out of memory, halve its sentences, then its places."""
        budget = RowBudget()

        check_deadline()

        def read_places(places: Sequence[int]) -> list[Scores]:
            def read_sentences(sentences: Sequence[int]) -> list[Scores]:
                return self._read_together(state, hypotheses, sentences, places)

            return budget.run(read_sentences, rectangle.groups.tolist())

        places = range(rectangle.places.start, rectangle.places.stop)
        return RowBudget().run(read_places, places)

    def _read_together(
        self, state: Any, hypotheses: Hypotheses, sentences: Sequence[int], places: Sequence[int]
    ) -> list[Scores]:
        rows, columns = torch.tensor(sentences), torch.tensor(places)
        part = hypotheses.groups(rows).at(columns.expand(len(rows), -1))
        if not part.exists.any():
            return []
        selected = self.model.select(state, rows.to(self.capabilities.device))
        log_prob, coverage = self.strategy.read(self.model, selected, part)
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


def read_stepwise(
    model: Model[Any], state: Any, hypotheses: Hypotheses, coverage: bool = False
) -> tuple[Tensor, Tensor | None]:
    """Read hypotheses step by step, one row per hypothesis."""
    log_prob: Tensor | float = 0.0
    attention: Tensor | float = 0.0
    for token_log_prob, weights, counts in read_positions(model, state, hypotheses, coverage):
        add_calls(rescoring=len(counts))
        log_prob = log_prob + token_log_prob.masked_fill(~counts, 0)
        if weights is not None:
            attention = attention + weights.masked_fill(~counts[:, None], 0)
    assert isinstance(log_prob, Tensor)
    return log_prob, attention if isinstance(attention, Tensor) else None


def read_positions(
    model: Model[Any], state: Any, hypotheses: Hypotheses, attention: bool = True
) -> Iterator[tuple[Tensor, Tensor | None, Tensor]]:
    """Read hypotheses, one row each, and yield what the model says at each position.

    Yields:
        The log-probability of the tokens [rows]; the attention to the source after they have been
        predicted [rows, source length], None without `attention` or if the model has none; whether
        the position counts [rows].
    """
    capabilities = Capabilities.of(model)
    bos, eos, _ = model.special
    teacher = TeacherForcing.of(hypotheses, bos, eos)
    state = expand_rows(model, state, hypotheses.lengths.shape)
    inputs, targets, counted = teacher.rows(capabilities.device)
    for t in range(inputs.shape[1]):
        check_deadline()
        logits, state = model.step(state, inputs[:, t])
        predicted = Prediction.of(model, logits, len(inputs), capabilities.normalised)
        if t == 0:
            ensure_in_vocabulary(model, targets, predicted.logits.shape[-1])
        weights = capabilities.attention(state) if attention and capabilities.attention else None
        yield predicted.at(targets[:, t, None]).squeeze(1), weights, counted[:, t]


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
