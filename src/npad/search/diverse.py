"""Diverse decoding: beam search with a penalty on siblings (Li & Jurafsky, 2016)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from npad.hypotheses import Hypotheses
from npad.model import Model
from npad.rows import Problems
from npad.search.beam import Beam, beam_search
from npad.search.decoder import Decoder


@dataclass(frozen=True)
class Diverse(Decoder):
    """Beam search that penalises siblings, by their rank.

    The k-th best child of a prefix is penalised by η·k; finish is "shrink". The penalty only
    affects the ranking: it is not carried into the next step, and log_prob is the model's own.
    Cost: that of `Beam`.
    """

    example: ClassVar[str] = "--width 10 --eta 0.1"
    page: ClassVar[str] = "decoding.md#diverse-decoding"
    compares_prefixes: ClassVar[bool] = True

    width: int = field(
        default=5, metadata={"help": "hypotheses kept at each step", "title": "{}", "minimum": 1}
    )
    eta: float = field(
        default=0.001,
        metadata={"help": "penalty on the rank among siblings", "title": "η={:g}", "minimum": 0},
    )
    nbest: int = field(default=1, metadata={"minimum": 1})

    def __post_init__(self) -> None:
        super().__post_init__()
        self._beam()  # checks that nbest is at most the width

    @property
    def rows(self) -> int:
        return self.width

    @property
    def from_one_beam(self) -> bool:
        return True

    def all_candidates(self) -> Diverse:
        return replace(self, nbest=self.width)

    def search(self, model: Model[Any], state: Any, problems: Problems) -> Hypotheses:
        return beam_search(model, state, problems, self._beam(), self._rank)

    def _beam(self) -> Beam:
        return Beam(self.width, "shrink", self.nbest)

    def _rank(self, children: Tensor) -> Tensor:
        """Subtract η · k from the k-th best child, k from 1: [groups, width, n]."""
        return children - self.eta * torch.arange(1, children.shape[-1] + 1, device=children.device)
