"""A model constrained by logits processors and stopping criteria, as Hugging Face has them.

They forbid or force tokens, set minimal lengths and penalise repetition. They constrain the search;
the scores of hypotheses are those of the model itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from npad.model import Capabilities, Perturb
from npad.models.huggingface.rewritten import Rewritten, RewrittenState

# (tokens [rows, t], scores [rows, V]) -> scores [rows, V]
Processor = Callable[[Tensor, Tensor], Tensor]
# (tokens [rows, t], scores [rows, V]) -> whether to stop [rows]
Criterion = Callable[[Tensor, Tensor], Tensor]


# Processors of transformers that depend on nothing but the tokens and the scores they are called
# with, and never wait for a GPU.
CAPTURABLE = {
    "ExponentialDecayLengthPenalty",
    "ForcedBOSTokenLogitsProcessor",
    "ForcedEOSTokenLogitsProcessor",
    "LogitNormalization",
    "MinLengthLogitsProcessor",
    "MinNewTokensLengthLogitsProcessor",
    "NoBadWordsLogitsProcessor",
    "RepetitionPenaltyLogitsProcessor",
    "SequenceBiasLogitsProcessor",
    "SuppressTokensAtBeginLogitsProcessor",
    "SuppressTokensLogitsProcessor",
    "TemperatureLogitsWarper",
}


@dataclass(frozen=True)
class ProcessedState(RewrittenState):
    """The state of the wrapped model, with the tokens that processors read."""

    written: Tensor  # [rows, t], the prefix and the tokens read since


class Processed(Rewritten):
    """A model constrained by processors and stopping criteria.

    A row that a criterion stops can only end.

    Args:
        model: the model to constrain.
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
        super().__init__(model)
        self.prefix, self.processor, self.criterion = prefix, processor, criterion
        self.beam = beam
        self._identity = self._what_it_does()

    def __eq__(self, other: object) -> bool:
        """Models constrained alike share their CUDA graphs."""
        return isinstance(other, Processed) and self._identity == other._identity

    def __hash__(self) -> int:
        return hash(self._identity)

    def _what_it_does(self) -> Any:
        """Return a key that is equal for models that are constrained alike, as far as is known."""
        if not self._is_pure():
            return id(self)
        options = [(type(part), _hashable(vars(part))) for part in self._processors()]
        return self.model, self.beam, tuple(options)

    def _processors(self) -> list[Processor]:
        if self.processor is None:
            return []
        return self.processor if isinstance(self.processor, list) else [self.processor]

    def _is_pure(self) -> bool:
        """Return whether scores depend on nothing but the tokens so far."""
        kinds = map(type, self._processors())
        return self.criterion is None and all(
            kind.__module__.startswith("transformers.") and kind.__name__ in CAPTURABLE
            for kind in kinds
        )

    @property
    def capabilities(self) -> Capabilities:
        capturable = Capabilities.of(self.model).capturable and self._is_pure()
        return replace(super().capabilities, normalised=self.beam, capturable=capturable)

    def wrap(self, inner: Any, source: Any) -> ProcessedState:
        prefix = self.model.prefix(source) if self.prefix is None else self.prefix
        return ProcessedState(inner, started=False, written=prefix)

    def select(self, state: ProcessedState, rows: Tensor) -> ProcessedState:
        inner = self.model.select(state.inner, rows)
        return replace(state, inner=inner, written=state.written[rows])

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
        return scores, ProcessedState(inner, started=True, written=written)


def _hashable(value: Any) -> Any:
    """Return a value of an option in a form that can be compared and hashed."""
    if isinstance(value, Tensor):
        return value.dtype, tuple(value.shape), tuple(value.flatten().tolist())
    if isinstance(value, dict):
        return tuple((name, _hashable(item)) for name, item in sorted(value.items(), key=str))
    if isinstance(value, list | tuple | set):
        return tuple(map(_hashable, value))
    return value
