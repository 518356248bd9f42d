"""Schedules, each by hand."""

from __future__ import annotations

import math

import pytest
import torch

from cases import recurrent, summaries, watched
from npad import NPAD, Noise, decode
from npad.noise.noisy import Noisy, entropy_share
from npad.schedules import (
    Adaptive,
    Annealed,
    Constant,
    Cosine,
    Exponential,
    FirstSteps,
    Linear,
    Power,
)

STEPS = torch.arange(1.0, 7.0)


@pytest.mark.parametrize(
    ("schedule", "factors"),
    [
        (Annealed(), [1, 1 / 2, 1 / 3, 1 / 4, 1 / 5, 1 / 6]),
        (Constant(), [1, 1, 1, 1, 1, 1]),
        (Power(0.5), [t**-0.5 for t in range(1, 7)]),
        (Power(2), [1, 1 / 4, 1 / 9, 1 / 16, 1 / 25, 1 / 36]),
        (Linear(4), [1, 0.75, 0.5, 0.25, 0, 0]),
        (Cosine(4), [1, (1 + math.sqrt(0.5)) / 2, 0.5, (1 - math.sqrt(0.5)) / 2, 0, 0]),
        (Exponential(0.5), [1, 0.5, 0.25, 0.125, 0.0625, 0.03125]),
        (FirstSteps(2), [1, 1, 0, 0, 0, 0]),
        (Adaptive(), [0.25] * 6),
        (Adaptive(2), [0.0625] * 6),
    ],
    ids=repr,
)
def test_factors_by_hand(schedule, factors):
    assert schedule(STEPS, torch.full((6,), 0.25)).tolist() == pytest.approx(factors, abs=1e-6)


def test_entropy_share_by_hand():
    p = torch.tensor([[0.25] * 4, [1.0, 0, 0, 0], [0.5, 0.5, 0, 0]])
    assert entropy_share(p.log()).tolist() == pytest.approx([1, 0, 0.5], abs=1e-6)
    assert entropy_share(torch.zeros(2, 1)).tolist() == [0, 0]
    assert entropy_share(p.log().half()).dtype == torch.float32


def test_entropy_share_is_a_share_whatever_the_rounding():
    for vocabulary in range(2, 400):
        assert entropy_share(torch.zeros(1, vocabulary)).item() <= 1


def test_adaptive_noise_follows_the_last_distribution():
    """Before the first token the factor is 1, then it is the entropy of the last distribution."""
    scales = []
    model = watched(recurrent(), lambda state, tokens, perturb: scales.append(perturb.scales))
    noisy = Noisy(model, Noise(0.5, Adaptive()))
    logits, state = noisy.step(noisy.start(summaries(3)), torch.zeros(3, dtype=torch.long))
    noisy.step(state, logits.argmax(-1))
    assert scales[0].tolist() == [0.5] * 3
    torch.testing.assert_close(scales[1], 0.5 * entropy_share(logits))


def test_a_schedule_is_any_function_of_step_and_entropy():
    """A plain function is given the entropy, and one that says 1/t is the annealed one."""
    model, source = recurrent(), summaries(4)
    plain = NPAD(chains=6, noise=Noise(0.8, lambda step, entropy: 1 / step))
    assert decode(model, source, plain, 8) == decode(
        model, source, NPAD(chains=6, noise=Noise(0.8)), 8
    )
    product = NPAD(chains=2, noise=Noise(0.8, torch.mul))  # has no signature to look at
    assert len(decode(model, source, product, 8)) == 4
    seen = []
    decode(
        model,
        source,
        NPAD(chains=2, noise=Noise(0.8, lambda step, entropy: seen.append(entropy) or entropy)),
        8,
    )
    assert (seen[0] == 1).all()
    assert (seen[1] < 1).all()
