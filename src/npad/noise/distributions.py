"""What the noise looks like: distributions of equal variance, drawn by key.

Each gives numbers of mean 0 and variance 1, which `perturb` scales by σ and adds; so two distributions at one σ are
a fair comparison. Wrappers (`Fixed`, `Antithetic`, `Orthogonal`) change how the numbers of different rows relate.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch
from torch import Tensor

from npad.errors import InvalidInput
from npad.kernels import fused
from npad.noise.random import Keys, draw, fold, normal, uniform
from npad.validation import brief, ensure_integer, ensure_number

FINITE = (
    "hidden",
    "cell",
    "embedding",
)  # sites that hold no −inf; logits do, where a symbol is ruled out


class Distribution:
    """Noise to add. A new one needs only `unit`."""

    relative_only: ClassVar[bool] = (
        False  # whether it makes sense only as a share of what it perturbs
    )
    capturable: ClassVar[bool] = (
        True  # whether a step that draws it may be captured in a CUDA graph
    )

    def unit(self, keys: Keys, width: int) -> Tensor:
        """[rows, width] in float32, mean 0 and variance 1."""
        raise InvalidInput(f"{type(self).__name__} is not additive: it has no unit noise to wrap")

    def perturb(self, x: Tensor, sigma: Tensor, keys: Keys, relative: bool) -> Tensor:
        """x [rows, width] with noise of standard deviation sigma [rows], or sigma times each row's RMS.

        What is −inf stays so, and does not count in the RMS.
        """
        scale = sigma.to(x.dtype)
        if relative:
            scale = scale * (rms(x) if keys.site.partition(".")[0] in FINITE else finite_rms(x))
        return self.added(x, scale, keys)

    def added(self, x: Tensor, scale: Tensor, keys: Keys) -> Tensor:
        """x [rows, width] and unit noise times scale [rows]."""
        return torch.addcmul(x, scale[:, None], self.unit(keys, x.shape[1]).to(x.dtype))


def rms(x: Tensor) -> Tensor:
    """The root mean square of each row: [rows, width] -> [rows]."""
    norm: Tensor = torch.linalg.vector_norm(x, dim=1)
    return norm / math.sqrt(x.shape[1])


def finite_rms(x: Tensor) -> Tensor:
    """The root mean square of each row without its −inf; 0 for a row of nothing else."""
    possible = x > -torch.inf
    count = possible.sum(1).clamp(min=1).to(torch.float32)  # float16 ends below a large vocabulary
    norm: Tensor = torch.linalg.vector_norm(x.where(possible, 0), dim=1)
    return norm / count.sqrt().to(x.dtype)


def ensure_distribution(name: str, value: object) -> None:
    """Require a distribution, and not its class or its name."""
    if isinstance(value, type):
        raise InvalidInput(
            f"{name} must be a distribution: write {value.__name__}(), not {value.__name__}"
        )
    if not isinstance(value, Distribution):
        raise InvalidInput(f"{name} must be a distribution, such as Gaussian(), not {brief(value)}")


@dataclass(frozen=True)
class Gaussian(Distribution):
    """The paper's."""

    def unit(self, keys: Keys, width: int) -> Tensor:
        return draw(keys.streams(), width, normal)

    def added(self, x: Tensor, scale: Tensor, keys: Keys) -> Tensor:
        if not fused(x):
            return super().added(x, scale, keys)
        from npad.kernels.gaussian import add_gaussian

        return add_gaussian(x, scale, *keys.parts())


@dataclass(frozen=True)
class Uniform(Distribution):
    """Even within ±√3: bounded, no outliers."""

    def unit(self, keys: Keys, width: int) -> Tensor:
        return draw(keys.streams(), width, uniform).sub_(0.5).mul_(math.sqrt(12))


@dataclass(frozen=True)
class Laplace(Distribution):
    """Two-sided exponential: many small changes, a few large."""

    def unit(self, keys: Keys, width: int) -> Tensor:
        centred = draw(keys.streams(), width, uniform).sub_(0.5)
        size = centred.abs().mul_(-2).log1p_().mul_(-math.sqrt(0.5))
        return size.mul_(centred.sign_())


@dataclass(frozen=True)
class StudentT(Distribution):
    """Heavy tails, heavier towards ν = 2, below which there is no variance to equal (Bailey's method, 1994)."""

    nu: float = 5.0

    def __post_init__(self) -> None:
        ensure_number("StudentT's nu", self.nu, above=2)

    def unit(self, keys: Keys, width: int) -> Tensor:
        return draw(
            keys.streams(), width, lambda bits: (self._number(bits >> 32), self._number(bits))
        )

    def _number(self, bits: Tensor) -> Tensor:
        """From 32 bits, 12 for a direction in the plane and 20 for the distance, whose tail is what matters."""
        angle = (bits & 0xFFF).to(torch.float32).add_(0.5).mul_(2 * math.pi / 2**12)
        u = ((bits >> 12) & 0xFFFFF).to(torch.float32).add_(0.5).mul_(2.0**-20)
        distance = u.log_().mul_(-2 / self.nu).expm1_().mul_(self.nu - 2).sqrt_()
        return angle.cos_().mul_(distance)


@dataclass(frozen=True)
class Dropout(Distribution):
    """Units go to zero with p = σ²/(1+σ²), the others grow by 1/(1−p): variance σ²x² for a unit of value x.

    Relative by nature, unit by unit, so `Noise(…, relative=True)` is required.
    """

    relative_only: ClassVar[bool] = True

    def perturb(self, x: Tensor, sigma: Tensor, keys: Keys, relative: bool) -> Tensor:
        variance = sigma.square()
        gone = draw(keys.streams(), x.shape[1], uniform) < (variance / (1 + variance))[:, None]
        gone &= x > -torch.inf  # a symbol that is ruled out stays so
        return x * (1 + variance).to(x.dtype)[:, None].expand_as(x).masked_fill(gone, 0)


@dataclass(frozen=True)
class Fixed(Distribution):
    """One vector per sentence and chain, the same at every step and for every hypothesis, scaled by the schedule."""

    base: Distribution = field(default_factory=Gaussian)

    def __post_init__(self) -> None:
        ensure_distribution("Fixed's base", self.base)

    @property
    def relative_only(self) -> bool:  # type: ignore[override]
        return self.base.relative_only

    @property
    def capturable(self) -> bool:  # type: ignore[override]
        return self.base.capturable

    def unit(self, keys: Keys, width: int) -> Tensor:
        return self.base.unit(self._still(keys), width)

    def perturb(self, x: Tensor, sigma: Tensor, keys: Keys, relative: bool) -> Tensor:
        return self.base.perturb(x, sigma, self._still(keys), relative)

    def _still(self, keys: Keys) -> Keys:
        nothing = torch.zeros_like(keys.steps)
        return replace(keys, steps=nothing, slots=nothing)


@dataclass(frozen=True)
class Antithetic(Distribution):
    """Opposite pairs: chain 2k meets the negative of what chain 2k−1 meets."""

    base: Distribution = field(default_factory=Gaussian)

    def __post_init__(self) -> None:
        ensure_distribution("Antithetic's base", self.base)
        if self.base.relative_only:
            raise InvalidInput(
                f"Antithetic needs additive noise; {type(self.base).__name__} has no negative"
            )

    @property
    def capturable(self) -> bool:  # type: ignore[override]
        return self.base.capturable

    def unit(self, keys: Keys, width: int) -> Tensor:
        second = keys.chains % 2 == 0
        noise = self.base.unit(replace(keys, chains=keys.chains - second.long()), width)
        return torch.where(second[:, None], -noise, noise)


@dataclass(frozen=True)
class Orthogonal(Distribution):
    """Gaussian vectors at right angles within blocks of consecutive chains (1–16, 17–32, …): no two look the same way.

    Each keeps its Gaussian length; its direction is what remains after those of the block's earlier chains are taken
    out (Gram–Schmidt), so fewer chains are a prefix of more. A block is no larger than the width of what it perturbs.
    Costs a look at which blocks are present: one host synchronisation a step on a GPU.
    """

    capturable: ClassVar[bool] = False

    block: int = 16

    def __post_init__(self) -> None:
        ensure_integer("Orthogonal's block", self.block, 1)
        if self.block > 16:
            raise InvalidInput(f"Orthogonal's block must be at most 16, not {self.block}")

    def unit(self, keys: Keys, width: int) -> Tensor:
        size = min(self.block, width)
        order = (keys.chains - 1).clamp(
            min=0
        )  # the clean chain joins the first block: its noise is scaled by zero
        block, place = order // size, order % size
        whose = replace(keys, chains=block, site=f"orthogonal {keys.site}").streams()
        present, mine = torch.unique(
            whose, return_inverse=True
        )  # rows of one block share its vectors
        members = fold(present[:, None], torch.arange(size, device=present.device)).flatten()
        vectors = draw(members, width, normal).view(-1, size, width)
        if width < 64:
            vectors = vectors.double()  # few dimensions can hold nearly dependent vectors

        gram = (vectors @ vectors.mT).double()
        one = torch.eye(size, dtype=gram.dtype, device=gram.device).expand_as(gram)
        combine: Tensor = torch.linalg.solve_triangular(
            torch.linalg.cholesky(gram), one, upper=False
        )
        combine = combine * gram.diagonal(dim1=-2, dim2=-1).sqrt()[..., None]
        return (combine.to(vectors.dtype) @ vectors).to(torch.float32)[mine, place]
