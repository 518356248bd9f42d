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
@pytest.mark.parametrize("function", [prepare, run.train, run.resume])
def test_a_wrong_argument_gets_one_line(function, tmp_path, monkeypatch):
    store, new = small_store(tmp_path / "texts", 20, 4).folder, count()
    files = (str(store / "../text/valid.src"), str(store / "../text/valid.tgt"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(run, "AttentionModel", partial(AttentionModel, **TINY))  # the defaults
    run.train(tmp_path / "run", store, TINY, Recipe(updates=1))
    training = {"data": store, "options": TINY, "recipe": Recipe(updates=1)}
    valid = {
        prepare: {"train": files, "valid": files, "vocabulary": (300, 300), "joint": False}
        | {"tokenizers": None, "max_length": 9, "sample": 5},
        run.train: training | {"device": "cpu", "watch": None},
        run.resume: {"folder": tmp_path / "run", "device": "cpu", "watch": None}
        | {"epochs": 1, "updates": 1, "patience": 1},
    }[function]
    fresh = {} if function is run.resume else {"folder": tmp_path}
    assert_wrong_arguments_are_refused(
        function, valid, lambda: {name: tmp_path / f"new-{next(new)}" for name in fresh}
    )
