"""A model whose predictions go through processors: functions of what each row has written and of its scores.

As Hugging Face has them (`LogitsProcessorList`, `StoppingCriteriaList`): forbidden and forced symbols, minimal lengths,
penalties on repetition. They steer the search; scores are the model's own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from npad.model import Capabilities, Perturb, Wrapper, name_of

Processor = Callable[[Tensor, Tensor], Tensor]  # symbols [rows, t] and scores [rows, V] -> scores
Criterion = Callable[
    [Tensor, Tensor], Tensor
]  # symbols [rows, t] and scores [rows, V] -> whether to stop [rows]


@dataclass(frozen=True)
class ProcessedState:
    """The state of the wrapped model, with the tokens that its logits processors read."""

    inner: Any
    written: Tensor  # [rows, t], the prefix and what has been read since
    started: bool = False  # whether the begin symbol has been read


class Processed(Wrapper[Any]):
    """A model steered by processors and stopping criteria.

    prefix [sentences, length]: what stands before the first symbol, for the processors to see; the model's own,
    `model.prefix(source)`, unless given. In a beam, processors
    change log-probabilities, which are not normalised again; elsewhere they change logits: as `generate` has it. A row
    that is to stop can only end.
    """

    def __init__(
        self,
        model: Any,
        prefix: Tensor | None = None,
        processor: Processor | None = None,
        criterion: Criterion | None = None,
        beam: bool = False,
    ) -> None:
        self.model: Any = model
        self.prefix, self.processor, self.criterion = prefix, processor, criterion
        self.beam = beam
        self.name = name_of(model)

    @property
    def capabilities(self) -> Capabilities:
        return replace(
            super().capabilities, judge=Clean(self.model), normalised=self.beam, steered=True
        )

    def start(self, source: Any) -> ProcessedState:
        prefix = self.model.prefix(source) if self.prefix is None else self.prefix
        return ProcessedState(self.model.start(source), prefix)

    def select(self, state: ProcessedState, rows: Tensor) -> ProcessedState:
        return replace(
            state, inner=self.model.select(state.inner, rows), written=state.written[rows]
        )

    def step(
        self, state: ProcessedState, tokens: Tensor, perturb: Perturb | None = None
    ) -> tuple[Tensor, ProcessedState]:
        logits, inner = self.model.step(state.inner, tokens, perturb)
        written = torch.cat([state.written, tokens[:, None]], 1) if state.started else state.written
        scores = logits.float().log_softmax(-1) if self.beam else logits.float()
        if self.processor is not None:
            scores = self.processor(written, scores)
        if self.criterion is not None and state.started:
            stop = self.criterion(written, scores).to(scores.device)
            only = torch.full_like(scores, -torch.inf)
            only[:, self.special.eos] = 0.0
            scores = torch.where(stop[:, None], only, scores)
        return scores, ProcessedState(inner, written, started=True)


class Clean(Wrapper[Any]):
    """The model itself, from the states of the processed one: the judge."""

    def __init__(self, model: Any) -> None:
        self.model: Any = model
        self.name = name_of(model)

    @property
    def capabilities(self) -> Capabilities:
        forced = Capabilities.of(self.model).forced
        return replace(super().capabilities, forced=forced)

    def start(self, source: Any) -> Any:
        return self.model.start(source)

    def step(
        self, state: Any, tokens: Tensor, perturb: Perturb | None = None
    ) -> tuple[Tensor, Any]:
        return self.model.step(state, tokens, perturb)  # type: ignore[no-any-return]

    def select(self, state: Any, rows: Tensor) -> Any:
        return self.model.select(state.inner if isinstance(state, ProcessedState) else state, rows)
