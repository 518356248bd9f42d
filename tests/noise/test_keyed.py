"""Keyed random numbers: the published generator, its moments, and independence of keys."""

from __future__ import annotations

import math

import pytest
import torch

from npad.noise.random import GOLDEN, Keys, draw, fold, mix_, normal, one_uniform, signed, uniform

FIELDS = ["seed", "ids", "chains", "steps", "slots", "site"]


def keys(rows=2000, **changes) -> Keys:
    """Keys that differ in the id, as sentences do."""
    nothing = torch.zeros(rows, dtype=torch.long)
    return Keys(
        **(
            {
                "seed": 0,
                "ids": torch.arange(rows),
                "chains": nothing + 1,
                "steps": nothing + 1,
                "slots": nothing,
                "site": "x",
            }
            | changes
        )
    )


@pytest.mark.parametrize(
    ("seed", "outputs"),
    [
        (0, [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]),
        (1234567, [6457827717110365317, 3203168211198807973, 9817491932198370423]),
    ],
)
def test_generator_is_the_published_splitmix64(seed, outputs):
    """The generator's well-known first outputs for two seeds."""
    stream = mix_(torch.tensor([seed]) + torch.arange(1, 4) * GOLDEN)
    assert stream.tolist() == [signed(output) for output in outputs]


def test_draws_are_numbers_of_the_stream():
    """Number i of a row comes from the i-th output of the stream that its key seeds."""
    streams = keys(1).streams()
    raw = [int(bits) % 2**64 for bits in mix_(streams + torch.arange(1, 4) * GOLDEN)]
    expected = [((b >> 41) + 0.5) / 2**23 for b in raw] + [
        ((b >> 9) % 2**23 + 0.5) / 2**23 for b in raw
    ]
    assert draw(streams, 6, uniform)[0].tolist() == pytest.approx(expected, abs=1e-7)
    radius, angle = (-2 * math.log(expected[0])) ** 0.5, 2 * math.pi * expected[3]
    assert draw(streams, 6, normal)[0, [0, 3]].tolist() == pytest.approx(
        [radius * math.cos(angle), radius * math.sin(angle)], abs=1e-5
    )


def test_layers_drawn_together_have_the_numbers_of_each():
    together = keys(3, layers=("a", "b"))
    for site, width in (("a", 5), ("b", 4), ("b", 5), ("a", 5), ("c", 5)):
        expected = draw(keys(3, site=site).streams(), width, normal)
        assert torch.equal(together.at(site).draw(width, normal), expected)


@pytest.mark.parametrize("field", FIELDS)
def test_every_field_of_the_key_matters_and_leaves_no_correlation(field):
    """Rows that differ in one field, by any lag, have uncorrelated noise."""
    rows, width = 400, 256
    base = keys(rows)
    if field == "site":
        other = base.at("y")
    elif field == "seed":
        other = keys(rows, seed=1)
    else:
        other = keys(rows, **{field: getattr(base, field) + 1})
    a, b = (draw(one.streams(), width, normal) for one in (base, other))
    if (
        field == "ids"
    ):  # the rows differ in the id already: row i of the one is row i+1 of the other
        assert torch.equal(a[1:], b[:-1])
    correlation = (a * b).mean().item()
    assert abs(correlation) < 4 / math.sqrt(rows * width)
    within = torch.corrcoef(a[:60]).fill_diagonal_(0)
    assert within.abs().max() < 5 / math.sqrt(width)


def test_fields_do_not_stand_for_each_other():
    """Seed 1, sentence 0 is not seed 0, sentence 1; chain 2, step 3 is not chain 3, step 2; …."""
    one = torch.ones(1, dtype=torch.long)
    names = ["ids", "chains", "steps", "slots"]
    seen = set()
    for seed in range(3):
        for code in range(3**4):
            values = [code // 3**place % 3 for place in range(4)]
            fields = {name: value * one for name, value in zip(names, values, strict=True)}
            seen.add(Keys(seed, **fields).streams().item())
    assert len(seen) == 3 * 3**4


def test_normal_numbers_are_normal():
    x = draw(keys(2000).streams(), 512, normal).double()
    assert abs(x.mean()) < 4 / math.sqrt(x.numel())
    assert x.var().item() == pytest.approx(1, abs=0.01)
    assert (x**3).mean().item() == pytest.approx(0, abs=0.02)
    assert (x**4).mean().item() == pytest.approx(3, abs=0.05)
    inside = ((x.abs() < 1).double().mean().item(), (x.abs() < 2).double().mean().item())
    assert inside == pytest.approx((0.6827, 0.9545), abs=2e-3)
    columns = torch.corrcoef(x.T[:64]).fill_diagonal_(0)
    assert columns.abs().max() < 5.5 / math.sqrt(2000)
    assert abs((x[:, :256] * x[:, 256:]).mean()) < 4 / math.sqrt(
        2000 * 256
    )  # the pair made of one 64-bit number


def test_single_uniforms_are_uniform():
    u = one_uniform(fold(keys(20_000).streams(), torch.tensor([3])))
    assert u.min() >= 0
    assert u.max() < 1
    counts = torch.histc(u, 20, 0, 1)
    statistic = ((counts - 1000) ** 2 / 1000).sum()
    assert statistic < 45  # 19 degrees of freedom: one in a thousand is above 43.8


def test_odd_widths_and_none():
    streams = keys(3).streams()
    assert draw(streams, 1, normal).shape == (3, 1)
    assert draw(streams, 7, uniform).shape == (3, 7)
    assert draw(streams[:0], 7, normal).shape == (0, 7)


def test_any_whole_number_is_a_seed():
    for seed in (-1, 2**63, 2**64 - 1, 2**80):
        assert keys(2, seed=seed).streams().shape == (2,)
    assert torch.equal(keys(2, seed=-1).streams(), keys(2, seed=2**64 - 1).streams())
