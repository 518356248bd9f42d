"""A damaged or edited run is refused when it is resumed, and the file is named."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch

from npad.errors import InvalidInput, StorageError
from npad.storage import checkpoint
from npad.storage import jsonl as log
from npad.storage.regular import seal
from npad.training import run
from npad.training.recipe import Recipe
from runs import SHORT, TINY, small_store, train, weights


@pytest.mark.parametrize("name", ["progress.json", "optimiser.safetensors", "weights.safetensors"])
def test_a_damaged_checkpoint_is_not_gone_on_from(tmp_path, store, name):
    train(tmp_path / "run", store, Recipe(batch=400, epochs=1))
    (path,) = (tmp_path / "run").glob(f"checkpoint-*/{name}")
    path.write_bytes(path.read_bytes().replace(b"1", b"2"))
    with pytest.raises(StorageError, match=f"{name} is damaged"):
        run.resume(tmp_path / "run", epochs=2)


def test_a_run_begins_with_the_weights_of_its_seed(tmp_path, store):
    for number in range(3):
        state = torch.manual_seed(number).get_state()
        train(tmp_path / f"{number}", store, replace(SHORT, updates=1, seed=number // 2))
        assert torch.equal(torch.get_rng_state(), state)  # of the caller
    first, second, other = (weights(tmp_path / f"{number}") for number in range(3))
    assert first == second != other


def reseal(path, **changes):
    """Change fields of a sealed file, and give it the digest of its new content."""
    plain = json.loads(path.read_text())
    del plain["digest"]
    path.write_text(json.dumps(seal(plain | changes)))


def edit_plan(path, **changes):
    """Change fields of the plan in a run.json, and seal it again."""
    reseal(path, plan=json.loads(path.read_text())["plan"] | changes)


@pytest.fixture(scope="module")
def short_run(tmp_path_factory, store):
    folder = tmp_path_factory.mktemp("short") / "run"
    train(folder, store, Recipe(batch=400, updates=2))
    return folder


@pytest.fixture
def copied(tmp_path, short_run):
    return shutil.copytree(short_run, tmp_path / "run")


def test_an_edited_plan_is_refused(copied):
    """Sealed again or not: other weights would come of it."""
    path = copied / "run.json"
    content = path.read_text()
    path.write_text(content.replace('"seed": 0', '"seed": 1'))
    with pytest.raises(StorageError, match=r"run.json is damaged or was edited: its digest"):
        run.resume(copied, updates=3)
    path.write_text(content)
    edit_plan(path, recipe=Recipe(batch=400, updates=2, seed=1).to_json())
    with pytest.raises(StorageError, match=r"the recipe of .*run is not what checkpoint-2"):
        run.resume(copied, updates=3)
    edit_plan(path, recipe=Recipe(batch=400, updates=2).to_json(), model=TINY | {"dropout": 0.1})
    with pytest.raises(StorageError, match=r"the model of .*run is not what checkpoint-2"):
        run.resume(copied, updates=3)
    edit_plan(path, model=TINY)
    run.resume(copied, updates=3)
    assert run.TrainingPlan.load(copied).recipe.updates == 3


def test_other_data_under_the_same_name_is_refused(tmp_path, copied):
    other = small_store(tmp_path / "other", train=100)
    edit_plan(copied / "run.json", data=str(other.folder))
    with pytest.raises(StorageError, match=r"the data of .*run is not what checkpoint-2"):
        run.resume(copied, updates=3)


def test_a_damaged_store_is_refused_before_anything_is_written(tmp_path, store, copied):
    data = shutil.copytree(store.folder, tmp_path / "data")
    values = np.fromfile(data / "train/target.tokens", "uint16")
    values[:2] = values[1::-1]  # which trains as well as any
    values.tofile(data / "train/target.tokens")
    with pytest.raises(StorageError, match=r"target.tokens is damaged: its checksum"):
        run.train(tmp_path / "new", data, TINY, SHORT)
    assert not (tmp_path / "new").exists()
    edit_plan(copied / "run.json", data=str(data))
    with pytest.raises(StorageError, match=r"target.tokens is damaged: its checksum"):
        run.resume(copied, updates=3)
    assert run.TrainingPlan.load(copied).recipe.updates == 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data": 3}, "its data or model is of another type"),
        ({"recipe": []}, "is damaged"),
        ({"recipe": {"batch": 0}}, "batch must be a whole number of at least 1, not 0"),
        ({"recipe": {"noise": 3}}, "is damaged"),
    ],
)
def test_a_plan_is_checked_for_types(copied, changes, message):
    edit_plan(copied / "run.json", **changes)
    with pytest.raises(StorageError, match=message):
        run.resume(copied)


def test_a_run_of_another_format_or_kind_is_refused(copied):
    reseal(copied / "run.json", kind="actor")
    with pytest.raises(InvalidInput, match="is a run of 'actor', not of 'model'; resume it with"):
        run.resume(copied)
    reseal(copied / "run.json", format=2)
    with pytest.raises(StorageError, match="is a run of format 2; this npad reads 3; start anoth"):
        run.resume(copied)


@pytest.mark.parametrize(
    ("progress", "message"),
    [
        ({"update": 3}, "checkpoint-2 is damaged: it is of update 3"),
        ({"more": 3}, "progress.json was written by another version of npad; start another run"),
    ],
)
def test_progress_that_does_not_fit_is_refused(copied, progress, message):
    """Also where its digest is right."""
    path = copied / "checkpoint-2/progress.json"
    reseal(path, progress=json.loads(path.read_text())["progress"] | progress)
    with pytest.raises(StorageError, match=message):
        run.resume(copied, updates=3)


def test_a_run_goes_on_only_with_its_best_model(copied):
    best = checkpoint.newest(copied, "best")
    content = (best / "model.safetensors").read_bytes()
    (best / "model.safetensors").write_bytes(content[:-1] + b"\7")
    with pytest.raises(StorageError, match=r"best-2/model.safetensors is damaged: its checksum"):
        run.resume(copied, updates=3)
    (best / "model.safetensors").write_bytes(content)
    best.rename(copied / "best-1")
    with pytest.raises(
        StorageError, match=r"has no best-2 any more; restore it, or start another run"
    ):
        run.resume(copied, updates=3)


def test_only_plain_numbers_name_a_checkpoint(copied):
    """Python counts other scripts' digits as digits, but `int` does not read them."""
    for name in ("best-²", "checkpoint-²", "checkpoint-٣", "checkpoint-03", "best--1"):
        (copied / name).mkdir()
    assert checkpoint.newest(copied, "best") == copied / "best-2"
    assert checkpoint.newest(copied, "checkpoint") == copied / "checkpoint-2"
    run.resume(copied, updates=3)
    assert (copied / "checkpoint-²").exists()


def test_a_torn_last_line_of_the_log_is_dropped_and_any_other_named(copied):
    path = copied / "log.jsonl"
    whole, records = path.read_bytes(), log.read(path)
    path.write_bytes(whole + whole[:30])
    assert log.read(path) == records
    path.write_bytes(whole[:-1])  # all but the line feed
    assert log.read(path) == records
    number = len(records) + 1
    for line, message in ((b"\xff", "it is not UTF-8 at byte 0"), (b"", "Expecting value")):
        path.write_bytes(whole + line + b"\n" + whole)
        with pytest.raises(StorageError, match=f"log.jsonl, line {number} is damaged: {message}"):
            run.resume(copied, updates=3)


@pytest.mark.parametrize("name", ["run.json", "log.jsonl", "checkpoint-2/progress.json", ".lock"])
def test_a_pipe_or_a_device_in_a_run_is_refused_without_waiting(copied, name):
    path = copied / name
    for put in (os.mkfifo, lambda path: path.symlink_to("/dev/zero"), os.mkdir):
        path.unlink(missing_ok=True)
        put(path)
        with pytest.raises(StorageError, match=f"cannot (read|write) .*{path.name}: "):
            run.resume(copied, updates=3)
        path.rmdir() if path.is_dir() else path.unlink()
