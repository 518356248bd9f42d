"""A damaged store, run or model is refused in one line, or changes nothing; nothing hangs.

`make test` tries a seeded seventh of the damages, 300, and `make fuzz` all 2,100.
"""

from __future__ import annotations

import os
import shutil
from functools import partial

import pytest
from safetensors.torch import load_file

from checkpoint_cases import SUBWORDS, tiny
from damage import Hang, faults, limited
from npad.reproduce import report
from npad.storage import checkpoint
from npad.training import run
from npad.training.recipe import Recipe
from npad.training.store import Store
from runs import ROOT, small_store
from studies.beyond.outline import BEYOND

SMALL = {"units": 4, "embedding": 3, "initialisation": "glorot"}
RECIPE = Recipe(batch=200, updates=2, checkpoint=1, validate=1)
# Damages of each folder
STORES, RUNS, MODELS, RESULTS = (
    size // (1 if "NPAD_FUZZ" in os.environ else 7) for size in (300, 300, 600, 300)
)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A store, a run of two updates, and the whole one of three."""
    folder = tmp_path_factory.mktemp("damage")
    store = small_store(folder, train=20, valid=4).folder
    run.train(folder / "run", store, SMALL, RECIPE)
    whole = shutil.copytree(folder / "run", folder / "whole")
    run.resume(whole, updates=3)
    return folder


def ending(folder):
    """The weights that a run ends with: those to go on from, and the best."""
    found = {}
    for kind in ("checkpoint", "best"):
        saved = checkpoint.newest(folder, kind)
        for file in saved.glob("*.safetensors"):
            for name, tensor in load_file(file).items():
                found[kind, file.name, name] = tensor.numpy().tobytes()
    return found


def test_a_damaged_store_is_refused_or_trains_the_same(tmp_path, folders):
    def attempt(store):
        run.train(store.parent / "run", store, SMALL, RECIPE)
        return ending(store.parent / "run")

    expected = ending(folders / "run")
    assert faults(folders / "store", tmp_path, attempt, expected, seed=0, count=STORES) == []


def test_a_damaged_run_is_refused_or_goes_on_the_same(tmp_path, folders):
    def attempt(folder):
        run.resume(folder, updates=3)
        return ending(folder)

    expected = ending(folders / "whole")
    assert faults(folders / "run", tmp_path, attempt, expected, seed=1, count=RUNS) == []


def test_the_search_for_faults_finds_them(tmp_path, folders, monkeypatch):
    """Without its checksums a damaged store trains other weights, and the search reports it."""
    monkeypatch.setattr(Store, "verify", lambda self: self)

    def attempt(store):
        run.train(store.parent / "run", store, SMALL, RECIPE)
        return ending(store.parent / "run")

    expected = ending(folders / "run")
    found = faults(folders / "store", tmp_path, attempt, expected, seed=0, count=20)
    assert any("another result" in reason for reason in found)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A model in float32 and the same in int8."""
    folder = tmp_path_factory.mktemp("models")
    for kind in ("float32", "int8"):
        packed = kind == "int8"
        checkpoint.save(folder / kind, tiny(), (SUBWORDS, SUBWORDS), {}, packed=packed)
    return folder


def contents(folder):
    """Everything about a model that decides how it translates."""
    saved = checkpoint.load(folder)
    parameters = saved.model.named_parameters()
    weights = {name: parameter.detach().numpy().tobytes() for name, parameter in parameters}
    tokenizers = [subwords.tokenizer.to_str() for subwords in saved.subwords]
    return weights, tokenizers, saved.model.options, saved.model.name


@pytest.mark.parametrize("kind", ["float32", "int8"])
def test_a_damaged_model_is_refused_or_loads_the_same(tmp_path, models, kind):
    expected = contents(models / kind)
    assert faults(models / kind, tmp_path, contents, expected, seed=2, count=MODELS) == []


def test_the_search_finds_damaged_models(tmp_path, models, monkeypatch):
    """Without the checksums of its files a damaged model loads as another."""
    monkeypatch.setattr(checkpoint, "_verify_files", lambda *_: None)
    expected = contents(models / "float32")
    found = faults(models / "float32", tmp_path, contents, expected, seed=2, count=40)
    assert any("another result" in reason for reason in found)


def test_damaged_results_render_or_are_refused(tmp_path):
    """Results have no checksums, so that people can edit them: another number is shown as it is."""
    render = partial(report.render, outline=BEYOND)
    folder = tmp_path / "results"
    folder.mkdir()
    for name in ("results.jsonl", "setup.json"):
        shutil.copy(ROOT / "docs/results/en-de" / name, folder)
    assert faults(folder, tmp_path, render, None, seed=3, count=RESULTS) == []


def test_a_hanging_case_is_interrupted(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(Hang), limited(0.1):
        (tmp_path / "pipe").read_bytes()
