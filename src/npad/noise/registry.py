"""Noise whose parts are given by name, as on the command line and in a checkpoint."""

from __future__ import annotations

from typing import Any

from npad.noise import distributions as distribution
from npad.noise import schedules as schedule
from npad.noise.noisy import Noise
from npad.specs import label, parse

SCHEDULES = (
    schedule.Annealed,
    schedule.Constant,
    schedule.Power,
    schedule.Linear,
    schedule.Cosine,
    schedule.Exponential,
    schedule.FirstSteps,
    schedule.Adaptive,
)
DISTRIBUTIONS = (
    distribution.Gaussian,
    distribution.Uniform,
    distribution.Laplace,
    distribution.StudentT,
    distribution.Dropout,
    distribution.Fixed,
    distribution.Antithetic,
    distribution.Orthogonal,
)


def named(sigma: Any, schedule: str = "1/t", distribution: str = "gaussian", **rest: Any) -> Noise:
    """Noise(sigma, …) with, say, schedule="power(p=0.7)" and distribution="student-t(nu=3)"."""
    when, what = parse("schedule", schedule, SCHEDULES), parse("noise", distribution, DISTRIBUTIONS)
    return Noise(sigma, when, what, **rest)


def spelt(noise: Noise) -> dict[str, Any]:
    """What `named` makes the same noise of."""
    names = {part: label(getattr(noise, part)) for part in ("schedule", "distribution")}
    return names | {part: getattr(noise, part) for part in ("sigma", "site", "relative")}
