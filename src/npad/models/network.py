"""What recurrent networks share: a step is a transition and a projection; teacher forcing projects all at once."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, Generic

import torch
from torch import Tensor, nn

from npad.model import Perturb, State, untouched


class Network(nn.Module, Generic[State]):
    """A model made of `transition`, which reads a symbol, and `logits`, the projection of what it returns."""

    logits: nn.Linear

    @abstractmethod
    def transition(self, state: State, tokens: Tensor, perturb: Any) -> tuple[Tensor, State]:
        """One symbol read: the readout [rows, width of logits], and the state after. `perturb` is never None."""

    def step(self, state: State, tokens: Tensor, perturb: Perturb | None = None) -> tuple[Tensor, State]:
        features, state = self.transition(state, tokens, perturb or untouched)
        return self.logits(features), state

    def forced(self, state: State, tokens: Tensor) -> Tensor:
        """Teacher forcing: [rows, T] -> logits [rows, T, V], with one product for all of them."""
        features = []
        for t in range(tokens.shape[1]):
            feature, state = self.transition(state, tokens[:, t], untouched)
            features.append(feature)
        return self.logits(torch.stack(features, 1))  # type: ignore[no-any-return]
