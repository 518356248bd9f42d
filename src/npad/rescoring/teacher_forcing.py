"""What a model reads and what it should predict, when hypotheses are given."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from npad.model import Capabilities, Model
from npad.search.hypotheses import Hypotheses
from npad.search.rows import repeat


class TeacherForcing(NamedTuple):
    """The input and target tokens of hypotheses [sentences, n]."""

    inputs: Tensor  # [sentences, n, T]
    targets: Tensor  # [sentences, n, T]
    reads: Tensor  # [sentences, n], the number of positions that count

    @property
    def counted(self) -> Tensor:
        """[sentences, n, T], whether a position counts."""
        return torch.arange(self.inputs.shape[-1]) < self.reads[..., None]

    @classmethod
    def of(cls, hypotheses: Hypotheses, bos: int, eos: int) -> TeacherForcing:
        lengths = hypotheses.lengths.clamp(min=0)
        reads = lengths + (hypotheses.finished & hypotheses.exists)
        padding = torch.arange(hypotheses.tokens.shape[-1]) >= lengths[..., None]
        tokens = hypotheses.tokens.masked_fill(padding, eos)  # a token that every model can read
        first, last = (torch.full_like(lengths, token)[..., None] for token in (bos, eos))
        longest = max(1, int(reads.max()))
        inputs = torch.cat([first, tokens], -1)[..., :longest]
        return cls(inputs, torch.cat([tokens, last], -1)[..., :longest], reads)

    def padded(self, hypotheses: int, positions: int, filler: int) -> TeacherForcing:
        """Return so many hypotheses of so many positions; those added do not count."""
        _, n, length = self.inputs.shape
        more = (0, positions - length, 0, hypotheses - n)
        inputs, targets = (pad(x, more, value=filler) for x in (self.inputs, self.targets))
        return TeacherForcing(inputs, targets, pad(self.reads, (0, hypotheses - n)))

    def rows(self, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
        """Return inputs, targets and what counts on a device, [rows, T] each."""
        tensors = (self.inputs, self.targets, self.counted)
        inputs, targets, counted = (x.flatten(0, 1).to(device) for x in tensors)
        return inputs, targets, counted


def expand_rows(model: Model[Any], state: Any, shape: tuple[int, ...]) -> Any:
    """Return a state with one row per hypothesis, of shape [sentences, n].

    The sentences are selected already: one `select` must not both drop and expand.
    """
    return model.select(state, repeat(shape[0], shape[1], Capabilities.of(model).device))
