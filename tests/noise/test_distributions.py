"""Distributions: equal variance, their own shape, and how chains relate."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

import npad
from cases import by_name
from npad import InvalidInput, Noise
from npad.distributions import (
    Antithetic,
    Dropout,
    Fixed,
    Gaussian,
    Laplace,
    Orthogonal,
    StudentT,
    Uniform,
)
from npad.noise.random import GOLDEN, Keys, draw, mix_, uniform

ADDITIVE = {
    "gaussian": Gaussian(),
    "uniform": Uniform(),
    "laplace": Laplace(),
    "student": StudentT(9.0),
    "fixed": Fixed(),
    "fixed-laplace": Fixed(Laplace()),
    "antithetic": Antithetic(),
    "antithetic-uniform": Antithetic(Uniform()),
    "orthogonal": Orthogonal(),
    "orthogonal-4": Orthogonal(4),
}
EVERY = ADDITIVE | {"dropout": Dropout(), "fixed-dropout": Fixed(Dropout())}
additive = pytest.mark.parametrize("distribution", **by_name(ADDITIVE))
every = pytest.mark.parametrize("distribution", **by_name(EVERY))


def grid(sentences=40, chains=33, steps=1, slots=1, seed=0) -> Keys:
    """Every combination, sentence-major; noisy chains from 1."""
    axes = torch.meshgrid(*map(torch.arange, (sentences, chains, steps, slots)), indexing="ij")
    ids, chain, step, slot = (axis.flatten() for axis in axes)
    return Keys(seed, ids, chain + 1, step + 1, slot, "hidden")


@additive
def test_mean_zero_and_variance_one(distribution):
    x = distribution.unit(grid(), 64).double()
    assert abs(x.mean()) < 5 / math.sqrt(x.numel()) * 1.5
    assert x.var().item() == pytest.approx(1, abs=0.04)
    assert x.var(0).mean().item() == pytest.approx(1, abs=0.04)


@pytest.mark.parametrize(
    ("distribution", "kurtosis"),
    [
        (Gaussian(), 3),
        (Uniform(), 1.8),
        (Laplace(), 6),
        (StudentT(12.0), 3 + 6 / 8),
        (Orthogonal(), 3),
    ],
    ids=["gaussian", "uniform", "laplace", "student", "orthogonal"],
)
def test_each_has_its_own_shape(distribution, kurtosis):
    x = distribution.unit(grid(200), 128).double()
    assert (x**4).mean().item() == pytest.approx(kurtosis, rel=0.05)
    assert (x**3).mean().item() == pytest.approx(0, abs=0.1)


def test_uniform_and_laplace_by_hand():
    """From the uniform numbers that the key draws, by the inverse of the distribution."""
    keys = grid(1, 1)
    u = draw(keys.streams(), 9, uniform)[0].double().tolist()
    laplace = [
        math.log(2 * x) / math.sqrt(2) if x < 0.5 else -math.log(2 - 2 * x) / math.sqrt(2)
        for x in u
    ]
    assert Uniform().unit(keys, 9)[0].tolist() == pytest.approx(
        [math.sqrt(12) * (x - 0.5) for x in u], abs=1e-5
    )
    assert Laplace().unit(keys, 9)[0].tolist() == pytest.approx(laplace, abs=1e-5)


@pytest.mark.parametrize("nu", [3.0, 9.0])
def test_student_t_by_hand(nu):
    """Bailey's method: of 32 bits, 12 are the angle and 20 the distance."""
    keys = grid(1, 1)
    raw = int(mix_(keys.streams() + GOLDEN)) % 2**64
    expected = []
    for bits in (raw >> 32, raw % 2**32):
        angle = 2 * math.pi * (bits % 2**12 + 0.5) / 2**12
        u = (bits // 2**12 + 0.5) / 2**20
        t = math.sqrt(nu * (u ** (-2 / nu) - 1)) * math.cos(angle)
        expected.append(t / math.sqrt(nu / (nu - 2)))
    assert StudentT(nu).unit(keys, 2)[0].tolist() == pytest.approx(expected, rel=1e-4)


@every
@pytest.mark.parametrize("relative", [False, True])
def test_sigma_is_the_standard_deviation(distribution, relative):
    if distribution.relative_only and not relative:
        with pytest.raises(InvalidInput, match="relative=True"):
            Noise(0.5, distribution=distribution)
        return
    keys = grid(60)
    x = torch.randn(len(keys.ids), 96, generator=torch.Generator().manual_seed(0)) * 3 + 1
    sigma = torch.full((len(x),), 0.25)
    change = distribution.perturb(x, sigma, keys, relative) - x
    expected = 0.25 * (x.square().mean().sqrt().item() if relative else 1)
    assert change.std().item() == pytest.approx(expected, rel=0.05)


@every
def test_each_row_has_a_sigma_of_its_own(distribution):
    keys = grid(3)
    x = torch.randn(len(keys.ids), 24)
    sigma = torch.arange(len(x)) % 2 * 0.5
    changed = distribution.perturb(x, sigma, keys, True)
    same = (changed == x).all(1)
    assert same[sigma == 0].all()
    assert not same[sigma > 0].any()


@every
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_the_same_noise_in_every_precision(distribution, dtype):
    keys = grid(2)
    x = torch.randn(len(keys.ids), 24).to(torch.bfloat16)
    sigma = torch.full((len(x),), 0.5)
    exact = distribution.perturb(x.double(), sigma, keys, True)
    changed = distribution.perturb(x.to(dtype), sigma, keys, True)
    assert changed.dtype == dtype
    torch.testing.assert_close(
        changed.double(), exact, atol=0.05 if dtype == torch.bfloat16 else 1e-5, rtol=0.02
    )


def test_dropout_by_hand():
    """σ = 0.5: p = 0.25/1.25 = 0.2 of the units go, the rest grow by 1.25."""
    keys = grid(50)
    x = torch.full((len(keys.ids), 64), 2.0)
    out = Dropout().perturb(x, torch.full((len(x),), 0.5), keys, True)
    assert sorted(set(out.flatten().tolist())) == [0.0, 2.5]
    assert (out == 0).double().mean().item() == pytest.approx(0.2, abs=0.01)


def test_fixed_is_one_vector_per_sentence_and_chain():
    keys = grid(5, 4, steps=3, slots=2)
    x = Fixed().unit(keys, 50).view(5, 4, 3, 2, 50)
    assert torch.equal(x, x[:, :, :1, :1].expand_as(x))
    vectors = x[:, :, 0, 0].flatten(0, 1)
    assert torch.corrcoef(vectors).fill_diagonal_(0).abs().max() < 0.75


def test_antithetic_pairs():
    """Chain 2k meets the negative of chain 2k−1's, and pairs are strangers to each other."""
    x = Antithetic().unit(grid(200, 8), 64).view(200, 8, 64)
    assert torch.equal(x[:, 1::2], -x[:, ::2])
    between = (x[:, 0] * x[:, 2]).mean()
    assert abs(between) < 4 / math.sqrt(200 * 64)
    assert torch.equal(x[:, ::2], Gaussian().unit(grid(200, 8), 64).view(200, 8, 64)[:, ::2])


@pytest.mark.parametrize(
    ("sentences", "chains", "width", "block"),
    [
        *((6, 40, width, 16) for width in (16, 17, 24, 100)),
        (3, 8, 4, 4),  # four dimensions hold four directions
        (3000, 16, 16, 16),  # however nearly dependent the vectors are
    ],
)
def test_orthogonal_within_blocks_of_chains(sentences, chains, width, block):
    x = Orthogonal().unit(grid(sentences, chains), width).double().view(sentences, chains, width)
    for vectors in x.split(block, dim=1):
        directions = vectors / vectors.norm(dim=-1, keepdim=True)
        products = directions @ directions.mT - torch.eye(vectors.shape[1])
        assert products.abs().max() < (1e-6 if sentences == 3000 else 1e-4)
    if chains > block:
        across = x[:, :block] * x[:, block : 2 * block]
        assert abs(across.mean()) < 5 / math.sqrt(across.numel())


def test_the_clean_chain_adds_no_block_of_its_own(monkeypatch):
    """Its noise is scaled by zero: blocks of four chains for chains 0 to 8 are two per sentence."""
    drawn = []
    monkeypatch.setattr(
        "npad.distributions.draw",
        lambda streams, *how: drawn.append(len(streams)) or draw(streams, *how),
    )
    keys = grid(3, 9)
    Orthogonal(4).unit(replace(keys, chains=keys.chains - 1), 20)
    assert drawn == [3 * 2 * 4]


def test_which_noise_may_be_captured_and_which_is_relative():
    """Orthogonal noise asks the host which blocks there are; what wraps another is like it."""
    assert {name for name, kind in EVERY.items() if not kind.capturable} == {
        "orthogonal",
        "orthogonal-4",
    }
    assert not Fixed(Orthogonal()).capturable
    assert not Antithetic(Orthogonal()).capturable
    assert {name for name, kind in EVERY.items() if kind.relative_only} == {
        "dropout",
        "fixed-dropout",
    }


@every
def test_a_row_alone_meets_the_same_noise(distribution):
    """Also Orthogonal, whose vectors depend on those of other chains: it works them out itself."""
    keys = grid(3, 20, steps=2, slots=2)
    x = torch.randn(len(keys.ids), 30)
    sigma = torch.full((len(x),), 0.3)
    together = distribution.perturb(x, sigma, keys, True)
    for row in (0, 41, 155, len(x) - 1):
        one = slice(row, row + 1)
        alone = replace(
            keys, **{name: getattr(keys, name)[one] for name in ("ids", "chains", "steps", "slots")}
        )
        torch.testing.assert_close(
            distribution.perturb(x[one], sigma[one], alone, True), together[one], atol=1e-6, rtol=0
        )


@every
@pytest.mark.parametrize("field", ["seed", "ids", "steps", "slots", "site", "chains"])
def test_noise_differs_in_every_field_of_the_key(distribution, field):
    """Except where intended: Fixed ignores step and slot, Antithetic mirrors a chain."""
    keys = grid(30, 16)
    other = {"seed": lambda: replace(keys, seed=7), "site": lambda: keys.at("cell")}.get(
        field, lambda: replace(keys, **{field: getattr(keys, field) + 64})
    )()
    x = torch.ones(len(keys.ids), 64)
    sigma = torch.full((len(x),), 0.5)
    a, b = (distribution.perturb(x, sigma, one, True) - x for one in (keys, other))
    if isinstance(distribution, Fixed) and field in ("steps", "slots"):
        assert torch.equal(a, b)
    else:
        assert not torch.equal(a, b)
        assert abs((a * b).mean() / (a.std() * b.std())) < 5 / math.sqrt(a.numel())


def logits_with_ruled_out(keys, share=0.25):
    """Logits [rows, 96], about a quarter of them −inf, and none but −inf in the last row."""
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(len(keys.ids), 96, generator=generator) * 3 + 1
    ruled_out = torch.rand(x.shape, generator=generator) < share
    ruled_out[-1] = True
    return x.masked_fill(ruled_out, -torch.inf), ruled_out


@every
@pytest.mark.parametrize("sigma", [0.0, 0.25])
@pytest.mark.parametrize("relative", [False, True])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16])
def test_logits_of_minus_infinity_stay_so(distribution, sigma, relative, dtype):
    if distribution.relative_only and not relative:
        return
    keys = replace(grid(60), site="output")
    x, ruled_out = logits_with_ruled_out(keys)
    x = x.to(dtype)
    noisy = distribution.perturb(x, torch.full((len(x),), sigma), keys, relative)
    assert torch.equal(noisy == -torch.inf, ruled_out)
    assert noisy[~ruled_out].isfinite().all()
    assert torch.equal(noisy, x) == (sigma == 0)


@every
def test_relative_noise_is_a_share_of_what_is_possible(distribution):
    keys = replace(grid(60), site="output")
    x, ruled_out = logits_with_ruled_out(keys, 0.75)
    change = (distribution.perturb(x, torch.full((len(x),), 0.25), keys, True) - x)[~ruled_out]
    assert change.std().item() == pytest.approx(
        0.25 * x[~ruled_out].square().mean().sqrt().item(), rel=0.05
    )


@pytest.mark.parametrize("site", ["hidden", "output"])
def test_finite_rows_meet_the_same_relative_noise_at_any_site(site):
    keys = grid(5)
    x = torch.randn(len(keys.ids), 100, generator=torch.Generator().manual_seed(0))
    sigma = torch.full((len(x),), 0.25)
    expected = x + (0.25 * x.square().mean(1).sqrt())[:, None] * Gaussian().unit(
        replace(keys, site=site), 100
    )
    torch.testing.assert_close(
        Gaussian().perturb(x, sigma, replace(keys, site=site), True), expected
    )


def test_a_model_that_rules_tokens_out_decodes_with_relative_noise_at_its_output():
    translator = npad.load("toy")
    greedy = translator.translate(["danke"], npad.Greedy())
    for sigma in (0.0, 0.5):
        noisy = npad.NPAD(chains=4, noise=Noise(sigma, site="output", relative=True))
        found = translator.translate(["danke"], noisy)
        assert found[0].log_prob >= greedy[0].log_prob > -math.inf


def test_noise_in_training_leaves_the_gradient_whole(monkeypatch):
    """The kernel that adds noise has no backward pass: a tensor that needs a gradient avoids it."""
    monkeypatch.setattr("npad.distributions.fused", lambda x: True)
    x = torch.ones(3, 4, requires_grad=True)
    ids = torch.arange(3)
    keys = Keys(0, ids, ids, ids, ids, "hidden")
    perturbed = Gaussian().perturb(x, torch.full((3,), 0.5), keys, relative=False)
    (gradient,) = torch.autograd.grad(perturbed.sum(), x)
    assert torch.equal(gradient, torch.ones(3, 4))
