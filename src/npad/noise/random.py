"""Counter-based random numbers, keyed instead of drawn from a shared stream.

A draw is a pure function of its key (seed, sentence id, chain, step, slot, site), so a chain gets
the same noise alone, in any batch and on any worker. The generator is SplitMix64 (Steele, Lea &
Flood, 2014): a row's key is folded into a 64-bit seed, and its i-th number is the i-th output of
the stream with that seed. It uses only integer additions, products, shifts and exclusive ors,
which torch offers on every device.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from npad.kernels import FIRST, GOLDEN, SECOND, signed

BLOCK = 1 << 16  # 64-bit draws at a time on a CPU, so that intermediate tensors stay in its cache


def mix_(z: Tensor) -> Tensor:
    """Apply SplitMix64's finaliser, a bijection that mixes all 64 bits, in place."""
    for shift, factor in ((30, FIRST), (27, SECOND), (31, None)):
        # >> is an arithmetic shift: mask the copies of the sign bit.
        z.bitwise_xor_((z >> shift).bitwise_and_((1 << (64 - shift)) - 1))
        if factor is not None:
            z.mul_(factor)
    return z


def fold(key: Tensor, field: Tensor | int) -> Tensor:
    """Return a key that combines `key` with one more field."""
    return mix_((key ^ field) + GOLDEN)


def stable_hash(name: str | bytes) -> int:
    """Return a 64-bit hash of a name that is the same in every process."""
    content = name.encode() if isinstance(name, str) else name
    return signed(int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little"))


Form = Callable[[Tensor], tuple[Tensor, Tensor]]  # random int64 bits -> two float32 numbers each


@dataclass(frozen=True)
class Keys:
    """The keys of random numbers, one per row, field by field."""

    seed: int
    ids: Tensor  # [rows], the sentence id
    chains: Tensor  # [rows]
    steps: Tensor  # [rows], from 1
    slots: Tensor  # [rows], rank among the chain's live hypotheses
    site: str = ""
    layers: tuple[str, ...] = ()  # sites whose numbers are drawn together
    kept: dict[Any, Tensor] = field(default_factory=dict, init=False, repr=False, compare=False)

    def at(self, site: str) -> Keys:
        keys = replace(self, site=site)
        object.__setattr__(keys, "kept", self.kept)  # the same for all sites
        return keys

    def parts(self) -> tuple[int, list[Tensor], int]:
        """Return the seed, the four fields [rows] and the site's hash, in the order of folding."""
        return (
            signed(self.seed),
            [self.ids, self.chains, self.steps, self.slots],
            stable_hash(self.site),
        )

    def streams(self) -> Tensor:
        """Return the 64-bit seed of each row's stream, [rows]."""
        seed, fields, site = self.parts()
        key = self.kept.get("")
        if key is None:
            # Start from 0, not from the seed: seed 1 ^ sentence 0 would equal seed 0 ^ sentence 1.
            key = torch.zeros_like(self.ids)
            parts: list[Tensor | int] = [seed, *fields]
            for part in parts:
                key = fold(key, part)
            self.kept[""] = key  # the site comes last
        return fold(key, site)

    def draw(self, width: int, form: Form) -> Tensor:
        """Draw numbers [rows, width] for this site, and for all layers if it is one of them."""
        if self.site not in self.layers:
            return draw(self.streams(), width, form)
        if (self.site, width) not in self.kept:
            streams = torch.cat([self.at(layer).streams() for layer in self.layers])
            drawn = draw(streams, width, form).chunk(len(self.layers))
            self.kept.update(
                ((layer, width), x) for layer, x in zip(self.layers, drawn, strict=True)
            )
        return self.kept.pop((self.site, width))


def draw(streams: Tensor, width: int, form: Form) -> Tensor:
    """Draw numbers [rows, width] in float32.

    Args:
        streams: [rows], the seed of each row's stream.
        width: numbers per row.
        form: maps random 64-bit integers to two numbers each, such as `normal`.
    """
    rows = streams.shape[0]
    columns = (width + 1) // 2
    counter = torch.arange(1, columns + 1, device=streams.device) * GOLDEN
    out = torch.empty(rows, 2 * columns, dtype=torch.float32, device=streams.device)
    size = max(1, BLOCK // columns if streams.device.type == "cpu" else rows)
    for block, part in zip(torch.split(streams, size), torch.split(out, size), strict=True):
        halves = torch.split(part, columns, 1)
        for half, numbers in zip(halves, form(mix_(block[:, None] + counter)), strict=True):
            half.copy_(numbers)
    return out[:, :width]


def high(bits: Tensor) -> Tensor:
    """Return uniform numbers in (0, 1), both excluded, from the upper half of 64 bits."""
    return ((bits >> 41) & ((1 << 23) - 1)).to(torch.float32).add_(0.5).mul_(2.0**-23)


def low(bits: Tensor) -> Tensor:
    """Return uniform numbers in (0, 1) from the lower half, independent of `high`."""
    return ((bits >> 9) & ((1 << 23) - 1)).to(torch.float32).add_(0.5).mul_(2.0**-23)


def uniform(bits: Tensor) -> tuple[Tensor, Tensor]:
    """Return two independent numbers per draw, uniform in (0, 1)."""
    return high(bits), low(bits)


def normal(bits: Tensor) -> tuple[Tensor, Tensor]:
    """Return two independent normal numbers per draw (Box & Muller, 1958)."""
    angle = low(bits).mul_(2 * math.pi)
    distance = high(bits).log_().mul_(-2).sqrt_()
    return angle.cos().mul_(distance), angle.sin_().mul_(distance)


def one_uniform(streams: Tensor) -> Tensor:
    """Return one number per stream, uniform in [0, 1), in float64 with 53 random bits."""
    bits = mix_(streams + GOLDEN)
    return ((bits >> 11) & ((1 << 53) - 1)).to(torch.float64) * 2.0**-53
