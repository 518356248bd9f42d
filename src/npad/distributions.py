"""Noise distributions of equal variance, drawn by key.

Unit noise has mean 0 and variance 1; `perturb` scales it by σ and adds it, so that distributions
with the same σ are comparable. `Fixed`, `Antithetic` and `Orthogonal` correlate the noise of
different rows. To add a distribution, write its class here and list it in `DISTRIBUTIONS`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from npad.errors import InvalidInput
from npad.kernels import fused
from npad.noise.random import Keys, draw, fold, normal, uniform
from npad.specs import Registry
from npad.validation import ensure_fields


class Distribution:
    """A distribution of noise. A new additive distribution only implements `unit`."""

    def __post_init__(self) -> None:
        ensure_fields(self, owned=True)

    @property
    def relative_only(self) -> bool:
        """Whether it requires Noise(…, relative=True)."""
        return False

    @property
    def capturable(self) -> bool:
        """Whether drawing it may be captured in a CUDA graph."""
        return True

    def unit(self, keys: Keys, width: int) -> Tensor:
        """Return noise [rows, width] in float32, of mean 0 and variance 1."""
        raise InvalidInput(f"{type(self).__name__} is not additive: it has no unit noise to wrap")

    def perturb(self, x: Tensor, sigma: Tensor, keys: Keys, relative: bool) -> Tensor:
        """Return x [rows, width] with noise.

        Values of −inf stay −inf and do not count in the RMS.

        Args:
            x: [rows, width].
            sigma: [rows], the standard deviation, in units of each row's RMS if `relative`.
            keys: the key of each row.
            relative: scale the noise by the RMS of each row of x.
        """
        scale = sigma.to(x.dtype)
        if relative:
            scale = scale * rms(x, keys.site)
        return self.added(x, scale, keys)

    def added(self, x: Tensor, scale: Tensor, keys: Keys) -> Tensor:
        """Return x [rows, width] plus scale [rows] times unit noise."""
        return torch.addcmul(x, scale[:, None], self.unit(keys, x.shape[1]).to(x.dtype))


def rms(x: Tensor, site: str) -> Tensor:
    """Return the root mean square of each row's finite entries: [rows, width] -> [rows].

    Only logits have entries of −inf, for tokens that are ruled out; states and embeddings skip the
    search for them.
    """
    norm: Tensor
    if site.partition(".")[0] in ("hidden", "cell", "embedding"):
        norm = torch.linalg.vector_norm(x, dim=1)
        return norm / math.sqrt(x.shape[1])
    finite = x > -torch.inf
    count = finite.sum(1).clamp(min=1).to(torch.float32)  # float16 overflows at 65,504 entries
    norm = torch.linalg.vector_norm(x.where(finite, 0), dim=1)
    return norm / count.sqrt().to(x.dtype)


RULE = "a distribution, such as Gaussian()"


@dataclass(frozen=True)
class Gaussian(Distribution):
    """Normal noise, the paper's."""

    def unit(self, keys: Keys, width: int) -> Tensor:
        return keys.draw(width, normal)

    def added(self, x: Tensor, scale: Tensor, keys: Keys) -> Tensor:
        if not fused(x) or x.requires_grad:  # the kernel has no backward pass
            return super().added(x, scale, keys)
        from npad.kernels.gaussian import add_gaussian

        return add_gaussian(x, scale, *keys.parts())


@dataclass(frozen=True)
class Uniform(Distribution):
    """Uniform noise in ±√3: bounded, no outliers."""

    def unit(self, keys: Keys, width: int) -> Tensor:
        return draw(keys.streams(), width, uniform).sub_(0.5).mul_(math.sqrt(12))


@dataclass(frozen=True)
class Laplace(Distribution):
    """Laplace noise (two-sided exponential): many small changes, a few large ones."""

    def unit(self, keys: Keys, width: int) -> Tensor:
        centred = draw(keys.streams(), width, uniform).sub_(0.5)
        magnitude = centred.abs().mul_(-2).log1p_().mul_(-math.sqrt(0.5))
        return magnitude.mul_(centred.sign_())


@dataclass(frozen=True)
class StudentT(Distribution):
    """Student's t noise, scaled to variance 1, drawn by Bailey's method (1994).

    The tails grow heavier as ν falls to 2, below which the variance is not finite.
    """

    nu: float = field(default=5.0, metadata={"above": 2})

    def unit(self, keys: Keys, width: int) -> Tensor:
        return draw(
            keys.streams(), width, lambda bits: (self._number(bits >> 32), self._number(bits))
        )

    def _number(self, bits: Tensor) -> Tensor:
        """Draw a number from 32 bits: 12 for the angle, 20 for the distance, which has the tail."""
        angle = (bits & 0xFFF).to(torch.float32).add_(0.5).mul_(2 * math.pi / 2**12)
        u = ((bits >> 12) & 0xFFFFF).to(torch.float32).add_(0.5).mul_(2.0**-20)
        distance = u.log_().mul_(-2 / self.nu).expm1_().mul_(self.nu - 2).sqrt_()
        return angle.cos_().mul_(distance)


@dataclass(frozen=True)
class Dropout(Distribution):
    """Dropout: zero a unit with probability p = σ²/(1+σ²), scale it by 1/(1−p) otherwise.

    The noise of a unit x has mean 0 and variance σ²x². It is relative to each unit by nature, so
    `Noise(…, relative=True)` is required.
    """

    @property
    def relative_only(self) -> bool:
        return True

    def perturb(self, x: Tensor, sigma: Tensor, keys: Keys, relative: bool) -> Tensor:
        variance = sigma.square()
        dropped = draw(keys.streams(), x.shape[1], uniform) < (variance / (1 + variance))[:, None]
        dropped &= x > -torch.inf  # −inf · 0 would be NaN: a token that is ruled out stays so
        return x * (1 + variance).to(x.dtype)[:, None].expand_as(x).masked_fill(dropped, 0)


@dataclass(frozen=True)
class Wrapping(Distribution):
    """A distribution that changes how another one is drawn."""

    base: Distribution = field(default_factory=Gaussian, metadata={"rule": RULE})

    @property
    def relative_only(self) -> bool:
        return self.base.relative_only

    @property
    def capturable(self) -> bool:
        return self.base.capturable


@dataclass(frozen=True)
class Fixed(Wrapping):
    """One noise vector per sentence and chain, the same for all its steps and hypotheses.

    The schedule still scales it.
    """

    def unit(self, keys: Keys, width: int) -> Tensor:
        return self.base.unit(self._fixed(keys), width)

    def perturb(self, x: Tensor, sigma: Tensor, keys: Keys, relative: bool) -> Tensor:
        return self.base.perturb(x, sigma, self._fixed(keys), relative)

    def _fixed(self, keys: Keys) -> Keys:
        """Return the keys without their steps and slots."""
        zeros = torch.zeros_like(keys.steps)
        return replace(keys, steps=zeros, slots=zeros, layers=())


@dataclass(frozen=True)
class Antithetic(Wrapping):
    """Antithetic pairs: chain 2k gets the negated noise of chain 2k − 1."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.base.relative_only:
            raise InvalidInput(
                f"Antithetic needs additive noise; {type(self.base).__name__} has no negative"
            )

    def unit(self, keys: Keys, width: int) -> Tensor:
        negated = keys.chains % 2 == 0
        noise = self.base.unit(replace(keys, chains=keys.chains - negated.long(), layers=()), width)
        return torch.where(negated[:, None], -noise, noise)


@dataclass(frozen=True)
class Orthogonal(Distribution):
    """Gaussian vectors, orthogonal within blocks of consecutive chains (1–16, 17–32, …).

    Gram–Schmidt takes out the directions of the block's earlier chains and keeps the vector's
    length, so the noise of a chain does not depend on the number of chains. A block has at most as
    many chains as the site has units. Cost: a host synchronisation per step on a GPU, to find the
    blocks that are present.
    """

    block: int = field(default=16, metadata={"minimum": 1, "maximum": 16})

    @property
    def capturable(self) -> bool:
        return False

    def unit(self, keys: Keys, width: int) -> Tensor:
        size = min(self.block, width)
        # The clean chain joins the first block: its noise is scaled by zero.
        chain = (keys.chains - 1).clamp(min=0)
        block, place = chain // size, chain % size
        row_blocks = replace(keys, chains=block, site=f"orthogonal {keys.site}").streams()
        blocks, block_of = torch.unique(row_blocks, return_inverse=True)
        streams = fold(blocks[:, None], torch.arange(size, device=blocks.device)).flatten()
        vectors = draw(streams, width, normal).view(-1, size, width)
        if width < 64:
            vectors = vectors.double()  # in few dimensions, vectors may be nearly dependent

        # Gram–Schmidt as a product: the Cholesky factor of the Gram matrix, inverted.
        gram = (vectors @ vectors.mT).double()
        identity = torch.eye(size, dtype=gram.dtype, device=gram.device).expand_as(gram)
        factor = torch.linalg.cholesky(gram)
        combine: Tensor = torch.linalg.solve_triangular(factor, identity, upper=False)
        combine = combine * gram.diagonal(dim1=-2, dim2=-1).sqrt()[..., None]
        return (combine.to(vectors.dtype) @ vectors).to(torch.float32)[block_of, place]


DISTRIBUTIONS = Registry(
    "distribution",
    Distribution,
    *(Gaussian, Uniform, Laplace, StudentT, Dropout, Fixed, Antithetic, Orthogonal),
)
