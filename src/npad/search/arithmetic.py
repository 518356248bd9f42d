"""Arithmetic sampling (Vilnis et al., 2023): samples that spread evenly over the outputs.

Every output owns an interval of [0, 1) as long as its probability, as in arithmetic coding. Sample
m is the output in whose interval its code lies; the codes are a van der Corput sequence, evenly
spaced and extended without moving, all shifted by one uniform number per sentence.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from npad.noise.random import Keys, fold, one_uniform
from npad.rows import Problems
from npad.search.sampling import Draw, Sampling

BELOW_ONE = 1 - 2.0**-53  # the largest code, in float64
# The probability of a prefix below which its code is spent: fewer than 65,536 codes in [0, 1) do
# not share such a prefix, and rescaling has magnified rounding errors of the model by 65,536.
SPENT = 2.0**-16


@dataclass(frozen=True)
class Arithmetic(Sampling):
    """Draw samples by evenly spaced codes, so that they differ.

    Each by itself is a sample of the model. Fields and cost are those of `Sampling`; fewer samples
    are the first of more. The shift is keyed by (seed, sentence id, chain). A code tells outputs
    apart down to a probability of 2⁻¹⁶; further tokens are drawn as `Sampling` draws them, so that
    rounding in another batch does not add up.
    """

    compared: ClassVar[bool] = False
    everyday: ClassVar[bool] = False
    page: ClassVar[str] = "actors.md#samples-to-compare-with"

    def _draws(self, problems: Problems) -> CodeDraw:
        zeros = torch.zeros_like(problems.ids)
        keys = Keys(self.seed, problems.ids, problems.chains, zeros, zeros, "arithmetic")
        codes = van_der_corput(self.samples, problems.ids.device)
        codes = (one_uniform(keys.streams())[:, None] + codes) % 1.0
        return CodeDraw(self, self._streams(problems), codes, torch.ones_like(codes))


@dataclass(frozen=True)
class CodeDraw(Draw):
    """Take the token in whose interval each row's code lies, and rescale the code to the interval.

    Rescaling by p uses up −log₂ p bits of a code. Once it is spent, every token has a fresh number,
    keyed as Sampling's draws. Codes and probabilities are written in place.
    """

    codes: Tensor  # [groups, samples], in [0, 1), float64
    left: Tensor  # [groups, samples], the probability of each prefix, float64

    def _draw(self, p: Tensor, step: Tensor) -> Tensor:
        cumulative = p.to(torch.float64).cumsum(-1)
        total = cumulative[..., -1:]
        fresh = one_uniform(fold(self.streams, step)).to(torch.float64)
        codes = torch.where(self.left < SPENT, fresh, self.codes)
        threshold = codes[..., None] * total
        threshold = torch.minimum(threshold, torch.nextafter(total, torch.zeros_like(total)))
        drawn = torch.searchsorted(cumulative, threshold, right=True)
        drawn = drawn.clamp(max=p.shape[-1] - 1)  # NaN gives n; the search loop reports it
        high = cumulative.gather(-1, drawn)
        before = cumulative.gather(-1, (drawn - 1).clamp(min=0))
        low = torch.where(drawn > 0, before, torch.zeros_like(before))
        rescaled = (threshold - low) / (high - low)
        self.codes.copy_(rescaled.squeeze(-1).clamp(0.0, BELOW_ONE))
        self.left.mul_(((high - low) / total).squeeze(-1))
        return drawn.squeeze(-1)

    def groups(self, index: Tensor) -> CodeDraw:
        parts = (self.streams[index], self.codes[index], self.left[index])
        return CodeDraw(self.sampling, *parts)


def van_der_corput(count: int, device: torch.device) -> Tensor:
    """Return the first numbers of the sequence in base 2: 0, 1/2, 1/4, 3/4, 1/8, …"""
    numbers, codes, share = torch.arange(count), torch.zeros(count, dtype=torch.float64), 0.5
    while bool(numbers.any()):
        codes += share * (numbers % 2)
        numbers, share = numbers // 2, share / 2
    return codes.to(device)
