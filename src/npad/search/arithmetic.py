"""Arithmetic sampling (Vilnis et al., 2023): samples that spread evenly over the outputs.

Every output owns an interval of [0, 1) as long as its probability, as in arithmetic coding. Sample
m is the output in whose interval its code lies; the codes are a van der Corput sequence, evenly
spaced and extended without moving, all shifted by one uniform number per sentence.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from npad.noise.random import Keys, fold, one_uniform
from npad.rows import Problems
from npad.search.sampling import Draw, Sampling

RESOLUTION = 2.0**-53  # of a code, in float64


@dataclass(frozen=True)
class Arithmetic(Sampling):
    """Draw samples by evenly spaced codes, so that they differ.

    Each by itself is a sample of the model. Fields and cost are those of `Sampling`; fewer samples
    are the first of more. The shift is keyed by (seed, sentence id, chain).
    """

    compared: ClassVar[bool] = False
    everyday: ClassVar[bool] = False
    page: ClassVar[str] = "actors.md#samples-to-compare-with"

    def _draws(self, problems: Problems) -> CodeDraw:
        zeros = torch.zeros_like(problems.ids)
        keys = Keys(self.seed, problems.ids, problems.chains, zeros, zeros, "arithmetic")
        codes = van_der_corput(self.samples, problems.ids.device)
        codes = (one_uniform(keys.streams())[:, None] + codes) % 1.0
        return CodeDraw(self, self._streams(problems), codes)


@dataclass(frozen=True)
class CodeDraw(Draw):
    """Take the token in whose interval each row's code lies, and rescale the code to the interval.

    Rescaling by p uses up −log₂ p bits of a code. Fresh bits, keyed as Sampling's draws, fill in
    from below, so that no output is too long for them. Codes are written in place.
    """

    codes: Tensor  # [groups, samples], in [0, 1), float64

    def _draw(self, p: Tensor, step: Tensor) -> Tensor:
        cumulative = p.to(torch.float64).cumsum(-1)
        total = cumulative[..., -1:]
        threshold = self.codes[..., None] * total
        threshold = torch.minimum(threshold, torch.nextafter(total, torch.zeros_like(total)))
        drawn = torch.searchsorted(cumulative, threshold, right=True)
        drawn = drawn.clamp(max=p.shape[-1] - 1)  # NaN gives n; the search loop reports it
        high = cumulative.gather(-1, drawn)
        before = cumulative.gather(-1, (drawn - 1).clamp(min=0))
        low = torch.where(drawn > 0, before, torch.zeros_like(before))
        fresh = one_uniform(fold(self.streams, step))[..., None] * RESOLUTION * total
        codes = (threshold - low + fresh) / (high - low)
        self.codes.copy_(codes.squeeze(-1).clamp(0.0, 1.0 - RESOLUTION))
        return drawn.squeeze(-1)

    def groups(self, index: Tensor) -> CodeDraw:
        return replace(self, streams=self.streams[index], codes=self.codes[index])


def van_der_corput(count: int, device: torch.device) -> Tensor:
    """Return the first numbers of the sequence in base 2: 0, 1/2, 1/4, 3/4, 1/8, …"""
    numbers, codes, share = torch.arange(count), torch.zeros(count, dtype=torch.float64), 0.5
    while bool(numbers.any()):
        codes += share * (numbers % 2)
        numbers, share = numbers // 2, share / 2
    return codes.to(device)
