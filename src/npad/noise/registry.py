"""Schedules and distributions by name, for the command line and checkpoints.

To add one, write its class in `schedules.py` or `distributions.py` and list it here.
"""

from __future__ import annotations

from typing import Any

from npad import distributions, schedules
from npad.noise.noisy import Noise
from npad.specs import Registry, label

SCHEDULES = Registry(
    "schedule",
    schedules.Schedule,
    schedules.Annealed,
    schedules.Constant,
    schedules.Power,
    schedules.Linear,
    schedules.Cosine,
    schedules.Exponential,
    schedules.FirstSteps,
    schedules.Adaptive,
)
DISTRIBUTIONS = Registry(
    "noise",
    distributions.Distribution,
    distributions.Gaussian,
    distributions.Uniform,
    distributions.Laplace,
    distributions.StudentT,
    distributions.Dropout,
    distributions.Fixed,
    distributions.Antithetic,
    distributions.Orthogonal,
)
NOISES = Registry("noise", Noise, Noise)  # whole, as a decoder's field: noise(sigma=0.3)


def noise_from_names(
    sigma: Any, schedule: str = "1/t", distribution: str = "gaussian", **fields: Any
) -> Noise:
    """Return Noise(sigma, …) with, say, schedule="power(p=0.7)", distribution="student-t(nu=3)"."""
    parts = SCHEDULES.parse(schedule), DISTRIBUTIONS.parse(distribution)
    return Noise(sigma, *parts, **fields)


def noise_as_names(noise: Noise) -> dict[str, Any]:
    """Return the arguments with which `noise_from_names` returns equal noise."""
    names = {name: label(getattr(noise, name)) for name in ("schedule", "distribution")}
    return names | {name: getattr(noise, name) for name in ("sigma", "site", "relative")}
