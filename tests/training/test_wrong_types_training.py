"""Preparing, training and resuming with arguments of wrong types work, or say why not."""

from __future__ import annotations

from functools import partial
from itertools import count

import pytest

from npad.models.cgru.model import AttentionModel
from npad.training import run
from npad.training.prepare import prepare
from npad.training.recipe import Recipe
from runs import TINY, small_store
from wrong_types import assert_wrong_arguments_are_refused


@pytest.mark.filterwarnings("ignore")
def test_preparing_with_a_wrong_argument_gets_one_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a").write_text("one two\nthree\n")
    (tmp_path / "b").write_text("eins zwei\ndrei\n")
    new = count()
    valid = {
        "train": ("a", "b"),
        "valid": ("a", "b"),
        "vocabulary": (300, 300),
        "joint": False,
        "tokenizers": None,
        "max_length": 9,
        "sample": 5,
    }
    assert_wrong_arguments_are_refused(
        prepare, valid, lambda: {"folder": tmp_path / f"store-{next(new)}"}
    )


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return small_store(tmp_path_factory.mktemp("wrong"), 20, 4).folder


@pytest.mark.filterwarnings("ignore")
def test_training_with_a_wrong_argument_gets_one_line(store, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        run, "AttentionModel", partial(AttentionModel, **TINY)
    )  # where options are left out
    new = count()
    valid = {
        "data": store,
        "options": TINY,
        "recipe": Recipe(updates=1),
        "device": "cpu",
        "watch": None,
    }
    assert_wrong_arguments_are_refused(
        run.train, valid, lambda: {"folder": tmp_path / f"run-{next(new)}"}
    )


@pytest.mark.filterwarnings("ignore")
def test_resuming_with_a_wrong_argument_gets_one_line(store, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run.train(tmp_path / "run", store, TINY, Recipe(updates=1))
    valid = {
        "folder": tmp_path / "run",
        "device": "cpu",
        "watch": None,
        "epochs": 1,
        "updates": 1,
        "patience": 1,
    }
    assert_wrong_arguments_are_refused(run.resume, valid)
