"""Epsilon sampling (Hewitt, Manning & Liang, 2022): improbable tokens are never drawn."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from npad.search.rows import Problems
from npad.search.sampling import Draw, Sampling
from npad.validation import ensure_number


@dataclass(frozen=True)
class Epsilon(Sampling):
    """Draw from the tokens whose probability is at least `epsilon`, and the most probable one.

    The other fields, the keys of the draws and the cost are those of `Sampling`; the cut comes
    after the temperature, and before `top_k` and `top_p`.

    Attributes:
        epsilon: the least probability of a token that may be drawn.
    """

    compared: ClassVar[bool] = False

    epsilon: float = field(
        default=0.02, metadata={"help": "draw from the tokens of probability N and more"}
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        ensure_number("epsilon", self.epsilon, above=0, below=1)

    def _draws(self, problems: Problems) -> EpsilonDraw:
        return EpsilonDraw(self, self._streams(problems))


@dataclass(frozen=True)
class EpsilonDraw(Draw):
    """Draw without the tokens of probability below epsilon."""

    def _restricted(self, logits: Tensor) -> Tensor:
        assert isinstance(self.sampling, Epsilon)
        p = logits.softmax(-1)
        rare = (p < self.sampling.epsilon) & (p < p.amax(-1, keepdim=True))
        return logits.masked_fill(rare, -torch.inf)
