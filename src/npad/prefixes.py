"""Prefixes that hypotheses of one sentence share, so that a model reads each once."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F


class Prefixes(NamedTuple):
    """The distinct prefixes of one length, `width` a sentence; a sentence with fewer repeats its first."""

    which: Tensor  # [sentences, n], the prefix of each hypothesis, numbered within its sentence
    first: Tensor  # [sentences, width], a hypothesis that begins so
    parents: Tensor  # [sentences, width], the prefix one symbol shorter


def prefixes(symbols: Tensor) -> list[Prefixes]:
    """Of hypotheses [sentences, n, T], the distinct prefixes of every length from 1 to T; their number never falls."""
    sentences, n, length = symbols.shape
    which, base = [symbols.new_zeros(sentences, n)], symbols.max() + 1
    for t in range(length):
        pair = which[-1] * base + symbols[:, :, t]
        ordered, order = pair.sort(1)
        new = F.pad((ordered[:, 1:] != ordered[:, :-1]).long(), (1, 0)).cumsum(1)
        which.append(torch.empty_like(new).scatter_(1, order, new))
    widths = [int(width) + 1 for width in torch.stack([each.amax() for each in which[1:]]).tolist()]
    place = torch.arange(n, device=symbols.device).expand(sentences, n)
    found = []
    for before, now, width in zip(which, which[1:], widths, strict=False):
        first = torch.full((sentences, width), n, device=symbols.device).scatter_reduce(1, now, place, "amin")
        first = first.masked_fill(first == n, 0)
        found.append(Prefixes(now, first, before.gather(1, first)))
    return found
