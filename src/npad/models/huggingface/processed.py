"""A model steered by logits processors and stopping criteria, as Hugging Face has them.

They forbid or force tokens, set minimal lengths and penalise repetition. They steer the search; the
scores of hypotheses are those of the model itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from npad.model import Capabilities, Perturb, Wrapper, name_of

# (tokens [rows, t], scores [rows, V]) -> scores [rows, V]
Processor = Callable[[Tensor, Tensor], Tensor]
# (tokens [rows, t], scores [rows, V]) -> whether to stop [rows]
Criterion = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class ProcessedState:
    """The state of the wrapped model, with the tokens that processors read."""

    inner: Any
    written: Tensor  # [rows, t], the prefix and the tokens read since
    started: bool = False  # whether the begin token has been read


class Processed(Wrapper[Any]):
    """A model steered by processors and stopping criteria.

    A row that a criterion stops can only end.

    Args:
        model: the model to steer.
        prefix: [sentences, length], the tokens before the first new one, for the processors;
            `model.prefix(source)` by default.
        processor: changes the scores of each step.
        criterion: stops rows.
        beam: process log-probabilities, which are not normalised again, instead of logits; as
            `generate` does in beam search.
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
            end_only = torch.full_like(scores, -torch.inf)
            end_only[:, self.special.eos] = 0.0
            scores = torch.where(stop[:, None], end_only, scores)
        return scores, ProcessedState(inner, written, started=True)


class Clean(Wrapper[Any]):
    """The judge of a `Processed` model: the wrapped model, started from the wrapper's states."""

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
