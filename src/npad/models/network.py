"""What recurrent networks share: a step is a transition and a projection; teacher forcing projects all at once."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, Generic

import torch
from torch import Tensor, nn

from npad.model import Perturb, State, untouched

LARGEST_SIZE = 2**24  # symbols or units: beyond, the numbers of a weight matrix overflow 64 bits
LARGEST_SIZES = {"layers": 1000}  # each is built in turn


class Network(nn.Module, Generic[State]):
    """A model made of `transition`, which reads a symbol, and `logits`, the projection of what it returns."""

    logits: Any  # a linear layer
    name = ""  # for messages and signatures, unless the class's will do

    @property
    def device(self) -> torch.device:
        """Where the weights are; faster than looking through all parameters."""
        return self.logits.weight.device  # type: ignore[no-any-return]

    @abstractmethod
    def transition(self, state: State, tokens: Tensor, perturb: Any) -> tuple[Tensor, State]:
        """One symbol read: the readout [rows, width of logits], and the state after. `perturb` is never None."""

    def step(
        self, state: State, tokens: Tensor, perturb: Perturb | None = None
    ) -> tuple[Tensor, State]:
        features, state = self.transition(state, tokens, perturb or untouched)
        return self.logits(features), state

    def forced(self, state: State, tokens: Tensor) -> Tensor:
        """Teacher forcing: [rows, T] -> logits [rows, T, V], with one product for all of them."""
        return self.logits(self.features(state, tokens))  # type: ignore[no-any-return]

    def features(
        self, state: State, tokens: Tensor, perturb: Callable[[int], Any] = lambda step: untouched
    ) -> Tensor:
        """What `logits` projects, for all steps: [rows, T] -> [rows, T, width]. perturb(t) is step t's, from 1."""
        features = []
        for t in range(tokens.shape[1]):
            feature, state = self.transition(state, tokens[:, t], perturb(t + 1))
            features.append(feature)
        return torch.stack(features, 1)
