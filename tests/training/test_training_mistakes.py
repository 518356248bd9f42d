"""Mistakes in a recipe or a run are named before anything is written."""

from __future__ import annotations

import json

import pytest
import torch

from npad import InvalidInput, Noise
from npad.distributions import Fixed, Gaussian, Orthogonal
from npad.errors import NpadError, StorageError
from npad.schedules import Adaptive
from npad.training import run
from npad.training.prepare import prepare
from npad.training.recipe import Recipe
from npad.training.store import Store
from npad.training.validation import Perplexity
from runs import SHORT, TINY, reversal, train, updater


class Own(Gaussian):
    """A distribution that npad does not know by name."""


RATE = r"learning_rate must be a finite number above 0 and below 3.4e\+38, not"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"optimiser": "adamw"}, "optimiser must be one of 'adam', 'adadelta', 'sgd', not 'adamw'"),
        ({"precision": "int8"}, "precision must be one of 'float32', 'bfloat16'"),
        ({"batch": 0}, "batch must be a whole number of at least 1, not 0"),
        ({"seed": 1 << 70}, "seed must be a whole number of at most 9223372036854775807"),
        ({"learning_rate": -1.0}, f"{RATE} -1.0"),
        ({"learning_rate": 1e300}, RATE),
        ({"noise": 3}, r"noise must be a Noise, such as Noise\(0.3\), or None, not 3"),
        ({"noise": Noise([0.1, 0.2])}, "training takes one sigma, not one per chain"),
        ({"noise": Noise(0.1, Adaptive())}, "Adaptive follows the output's entropy"),
        ({"noise": Noise(0.1, distribution=Fixed(Orthogonal()))}, "Orthogonal noise relates the"),
    ],
)
def test_mistakes_in_a_recipe_are_named(fields, message):
    with pytest.raises(InvalidInput, match=message):
        Recipe(**fields)


def test_mistakes_in_a_run_are_named(tmp_path, store):
    train(tmp_path / "run", store, Recipe(batch=400, epochs=1))
    with pytest.raises(InvalidInput, match="holds a run already; continue it with --resume"):
        train(tmp_path / "run", store)
    with pytest.raises(InvalidInput, match="watch must be a Watch, or None, not 3"):
        run.resume(tmp_path / "run", watch=3)
    with pytest.raises(InvalidInput, match=r"with other epochs, .*; its batch stays as it was"):
        run.resume(tmp_path / "run", batch=3)
    with pytest.raises(InvalidInput, match="only with a schedule and a distribution that npad has"):
        train(tmp_path / "other", store, Recipe(noise=Noise(0.1, distribution=Own())))
    with pytest.raises(InvalidInput, match="holds no run to resume"):
        run.resume(tmp_path)
    with pytest.raises(InvalidInput, match="no noise site 'cell'; it offers 'hidden'"):
        train(tmp_path / "other", store, Recipe(noise=Noise(0.1, site="cell")))
    (tmp_path / "run/run.json").write_text("{")
    with pytest.raises(StorageError, match=r"run.json is damaged"):
        run.resume(tmp_path / "run")
    about = json.loads((store.folder / "store.json").read_text())
    del about["splits"]["valid"]
    with pytest.raises(InvalidInput, match="has no validation pairs"):
        Perplexity(updater(store).model, Store(store.folder, about), SHORT, torch.device("cpu"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"units": 2**20}, "a model of units 1,048,576, .* cannot be trained in the"),
        ({"units": 10**400}, "units must be a whole number of at most 16777216"),
        ({"embedding": 2**24, "units": 2**16}, "embedding 16,777,216, .* cannot be trained"),
        ({"layers": 99999999999}, "layers must be a whole number of at most 1000, not 99999999999"),
        ({"layers": "2"}, "layers must be a whole number of at least 1, not '2'"),
    ],
)
def test_a_giant_model_is_refused_before_anything_is_written(tmp_path, store, options, message):
    text = {"train": [__file__, __file__], "valid": [__file__, __file__]}
    for data in (store.folder, text):
        with pytest.raises(InvalidInput, match=message):
            run.train(tmp_path / "run", data, TINY | options, SHORT)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("optimiser", "copies"), [("adam", 4), ("adadelta", 4), ("sgd", 2)])
def test_a_model_that_just_fits_is_trained(monkeypatch, optimiser, copies):
    """Its weights, their gradient, and the optimiser's state, in float32."""
    device, recipe = torch.device("cpu"), Recipe(optimiser=optimiser)
    monkeypatch.setattr(run, "total_memory", lambda device: 10**12)
    model = run.ensure_fits((30, 20), TINY, recipe, device)
    size = 4 * copies * sum(weight.numel() for weight in model.parameters())
    monkeypatch.setattr(run, "total_memory", lambda device: size)
    run.ensure_fits((30, 20), TINY, recipe, device)
    monkeypatch.setattr(run, "total_memory", lambda device: size - 1)
    with pytest.raises(InvalidInput, match="units 8, embedding 6, layers 1 cannot be trained in"):
        run.ensure_fits((30, 20), TINY, recipe, device)


def test_a_precision_that_a_device_cannot_multiply_in_is_refused(tmp_path, store, monkeypatch):
    def unable(*_):
        raise RuntimeError("not implemented for BFloat16")

    monkeypatch.setattr(torch, "mm", unable)
    with pytest.raises(InvalidInput, match=r"cpu cannot compute in bfloat16; .*not implemented"):
        train(tmp_path / "run", store, Recipe(precision="bfloat16", updates=1))


def test_a_giant_vocabulary_is_refused_before_anything_is_written(tmp_path):
    message = "vocabulary: each must be a whole number of at most 10000000, not 99999999999"
    with pytest.raises(InvalidInput, match=message):
        prepare(tmp_path / "store", (__file__, __file__), vocabulary=(300, 99999999999))
    assert list(tmp_path.iterdir()) == []


def test_paths_are_stored_absolutely(tmp_path, monkeypatch):
    """So that a run that was killed before it prepared its data resumes from any directory."""
    reversal(tmp_path / "text", train=40, valid=8)
    monkeypatch.chdir(tmp_path / "text")
    files = {split: [f"{split}.src", f"{split}.tgt"] for split in ("train", "valid")}
    run.train(tmp_path / "run", {**files, "vocabulary": (280, 280)}, TINY, Recipe(updates=1))
    data = run.TrainingPlan.load(tmp_path / "run").data
    assert data.train == (f"{tmp_path}/text/train.src", f"{tmp_path}/text/train.tgt")


def test_a_mistake_leaves_no_run_behind(tmp_path, store):
    text = {"train": ["nowhere", "nowhere"], "valid": ["nowhere", "nowhere"]}
    for data, options, message in (
        (text, TINY, "cannot read nowhere: there is no such file"),
        (store.folder, TINY | {"units": 0}, "units must be a whole number of at least 1, not 0"),
        (tmp_path, TINY, "is not a token store"),
    ):
        with pytest.raises(NpadError, match=message):
            run.train(tmp_path / "run", data, options, SHORT)
    assert not (tmp_path / "run").exists()
