"""Random numbers by name instead of by turn.

A draw is a pure function of its key (seed, sentence id, chain, step, slot, site), so the same chain meets the same
noise alone, in any batch, on any worker. The generator is SplitMix64 (Steele, Lea & Flood, 2014): each row's key is
folded into a 64-bit seed, and number i of the row is the i-th output of the stream that starts there. Only integer
additions, products, shifts and exclusive ors, all of which torch has on every device.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from npad.kernels.splitmix64 import FIRST, GOLDEN, SECOND, signed

BLOCK = 1 << 16  # numbers drawn at a time on a CPU, so that intermediate results stay in its cache


def mix_(z: Tensor) -> Tensor:
    """SplitMix64's finaliser, in place: a bijection of 64-bit integers whose output looks random."""
    for shift, factor in ((30, FIRST), (27, SECOND), (31, None)):
        z.bitwise_xor_(
            (z >> shift).bitwise_and_((1 << (64 - shift)) - 1)
        )  # >> is arithmetic: clear the sign's copies
        if factor is not None:
            z.mul_(factor)
    return z


def fold(key: Tensor, field: Tensor | int) -> Tensor:
    """A new key from a key and one more field of it."""
    return mix_((key ^ field) + GOLDEN)


def stable_hash(name: str | bytes) -> int:
    """A stable 64-bit number for a name."""
    content = name.encode() if isinstance(name, str) else name
    return signed(int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little"))


Form = Callable[[Tensor], tuple[Tensor, Tensor]]  # random int64 bits -> two numbers for each


@dataclass(frozen=True)
class Keys:
    """Whose random numbers: one key a row, field by field."""

    seed: int
    ids: Tensor  # [rows], the sentence
    chains: Tensor  # [rows]
    steps: Tensor  # [rows], from 1
    slots: Tensor  # [rows], rank among the chain's live hypotheses
    site: str = ""

    def at(self, site: str) -> Keys:
        return replace(self, site=site)

    def parts(self) -> tuple[int, list[Tensor], int]:
        """The seed, the four fields [rows] and the site's number, as a kernel folds them."""
        return (
            signed(self.seed),
            [self.ids, self.chains, self.steps, self.slots],
            stable_hash(self.site),
        )

    def streams(self) -> Tensor:
        """[rows], the 64-bit seed of each row's stream."""
        key = torch.zeros_like(
            self.ids
        )  # not the seed itself: seed 1 ^ sentence 0 would be seed 0 ^ sentence 1
        seed, fields, site = self.parts()
        parts: list[Tensor | int] = [seed, *fields, site]
        for field in parts:
            key = fold(key, field)
        return key


def draw(streams: Tensor, width: int, form: Form) -> Tensor:
    """Fill [rows, width] in float32 with numbers that `form` makes of random bits, two from each 64."""
    rows = streams.shape[0]
    columns = (width + 1) // 2
    counter = torch.arange(1, columns + 1, device=streams.device) * GOLDEN
    out = torch.empty(rows, 2 * columns, dtype=torch.float32, device=streams.device)
    size = max(1, BLOCK // columns if streams.device.type == "cpu" else rows)
    for some, part in zip(torch.split(streams, size), torch.split(out, size), strict=True):
        for number, place in zip(
            form(mix_(some[:, None] + counter)), torch.split(part, columns, 1), strict=True
        ):
            place.copy_(number)
    return out[:, :width]


def high(bits: Tensor) -> Tensor:
    """A uniform number in (0, 1) from the upper half of 64 bits; never 0 or 1, so that its logarithm is finite."""
    return ((bits >> 41) & ((1 << 23) - 1)).to(torch.float32).add_(0.5).mul_(2.0**-23)


def low(bits: Tensor) -> Tensor:
    """Another, independent of `high`, from the lower half."""
    return ((bits >> 9) & ((1 << 23) - 1)).to(torch.float32).add_(0.5).mul_(2.0**-23)


def uniform(bits: Tensor) -> tuple[Tensor, Tensor]:
    """Two numbers, uniform in (0, 1)."""
    return high(bits), low(bits)


def normal(bits: Tensor) -> tuple[Tensor, Tensor]:
    """Two independent normal numbers: a random direction in the plane, √(−2 ln u) away (Box & Muller, 1958)."""
    angle = low(bits).mul_(2 * math.pi)
    distance = high(bits).log_().mul_(-2).sqrt_()
    return angle.cos().mul_(distance), angle.sin_().mul_(distance)


def one_uniform(streams: Tensor) -> Tensor:
    """One number a stream, uniform in [0, 1), in float64 with all its 53 bits."""
    bits = mix_(streams + GOLDEN)
    return ((bits >> 11) & ((1 << 53) - 1)).to(torch.float64) * 2.0**-53
