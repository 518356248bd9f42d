"""Greedy search: the most probable symbol, at every step (Cho, 2016, section 3.1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from npad.hypotheses import Found
from npad.model import Model
from npad.rows import Problems
from npad.search.decoder import Decoder
from npad.search.walk import walk


@dataclass(frozen=True)
class Greedy(Decoder):
    """Take the most probable symbol until the end symbol is it. Cost: one row, one step a symbol."""

    def search(self, model: Model[Any], state: Any, problems: Problems) -> Found:
        return walk(model, state, problems, MostProbableSymbol(), width=1)


class MostProbableSymbol:
    def __call__(self, log_probs: Tensor, step: Tensor) -> Tensor:
        return log_probs.argmax(-1)

    def groups(self, index: Tensor) -> MostProbableSymbol:
        return self
