"""Recipes: their defaults, their optimisers, and what is kept of them in a run."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from torch import nn

from npad import Noise
from npad.distributions import Fixed, Gaussian, Laplace
from npad.schedules import Constant
from npad.training.recipe import Recipe

NOISES = [None, Noise(0.3), Noise(0.1, Constant(), Fixed(Laplace()), relative=True)]
CPU = torch.device("cpu")


def test_the_defaults_train_for_twenty_epochs_with_adam():
    recipe = Recipe()
    assert (recipe.optimiser, recipe.rate, recipe.decay, recipe.clip) == ("adam", 1e-3, 1.0, 1.0)
    assert (recipe.batch, recipe.epochs, recipe.patience) == (4096, 20, 5)
    assert (recipe.checkpoint, recipe.seed, recipe.precision) == (1000, 0, "float32")
    assert (recipe.anneal, recipe.augment) == (False, True)
    assert recipe.updates is recipe.validate is recipe.noise is None


@pytest.mark.parametrize(
    ("name", "kind", "rate"),
    [
        ("adam", torch.optim.Adam, 1e-3),
        ("adadelta", torch.optim.Adadelta, 1.0),
        ("sgd", torch.optim.SGD, 0.1),
    ],
)
def test_an_optimiser_has_its_rate_or_the_given_one(name, kind, rate):
    parameters = [nn.Parameter(torch.zeros(1))]
    for given, expected in ((None, rate), (0.25, 0.25)):
        optimiser = Recipe(optimiser=name, learning_rate=given).optimise(parameters, CPU)
        assert type(optimiser) is kind
        (group,) = optimiser.param_groups
        assert group["lr"] == expected
        assert not group.get("fused")
    if name == "adadelta":  # as in the paper
        assert (group["rho"], group["eps"]) == (0.95, 1e-6)


@pytest.mark.parametrize("noise", NOISES, ids=str)
@pytest.mark.parametrize("augment", [True, False])
def test_a_recipe_comes_back_from_json(noise, augment):
    recipe = Recipe(optimiser="sgd", batch=7, updates=9, noise=noise, augment=augment)
    plain = recipe.to_json()
    assert ("augment" in plain) is not augment  # as before there was the field
    assert Recipe.from_json(json.loads(json.dumps(plain))) == recipe


def test_numbers_of_numpy_can_be_kept():
    recipe = Recipe(clip=np.float64(2.5), batch=np.int64(7), noise=Noise(np.float64(0.25)))
    assert Recipe.from_json(json.loads(json.dumps(recipe.to_json()))) == recipe


def test_noise_of_any_fixed_distribution_can_be_trained_with():
    for distribution in (Gaussian(), Fixed(Gaussian()), Fixed(Fixed(Laplace()))):
        assert Recipe(noise=Noise(0.1, distribution=distribution)).noise is not None
