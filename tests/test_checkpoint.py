"""Models on disk: whole or not there, and every kind of damage named."""

from __future__ import annotations

import json
import shutil
from typing import Any

import pytest
import torch

import npad
from npad.errors import InvalidInput, NpadError, StorageError
from npad.models.attention import AttentionModel
from npad.text.subwords import Subwords
from npad.training import checkpoint
from npad.training.folders import sweep, whole_folder
from runs import TINY

SUBWORDS = Subwords.learn(["ein kleines Haus", "ein kleiner Hund"] * 3, 280)


def tiny(**changes):
    torch.manual_seed(1)
    return AttentionModel(SUBWORDS.size, SUBWORDS.size, **(TINY | changes)).eval()


@pytest.fixture
def folder(tmp_path):
    checkpoint.save(tmp_path / "model", tiny(), (SUBWORDS, SUBWORDS), {"training": {"update": 3}})
    return tmp_path / "model"


@pytest.mark.parametrize(
    "changes",
    [{}, {"cell": "lstm", "layers": 2}, {"attention": False, "dropout": 0.1}, {"tied": True}],
    ids=["gru", "lstm", "fixed", "tied"],
)
def test_a_model_comes_back_as_it_was(tmp_path, changes):
    model = tiny(**changes)
    checkpoint.save(tmp_path / "model", model, (SUBWORDS, SUBWORDS), {})
    again = checkpoint.load(tmp_path / "model").model
    source = SUBWORDS.encode(["ein Haus", "Hund"])
    for decoder in (npad.Beam(3), npad.NPAD(chains=4)):
        assert npad.decode(again, source, decoder, 6) == npad.decode(model, source, decoder, 6)


def test_load_makes_a_translator_of_a_folder(folder):
    translator = npad.load(folder)
    (one,) = translator.translate(["ein Haus"], npad.Greedy(), max_length=5)
    assert one.text == SUBWORDS.decode(one.hypothesis.tokens)
    assert one.signature == f"greedy|model:model|version:{npad.__version__}"
    assert translator.score(["ein Haus"], ["ein Hund"])[0] < 0


def test_only_plain_files_are_written(folder):
    files = sorted(path.name for path in folder.iterdir())
    assert files == ["config.json", "model.safetensors", "source.tokenizer.json", "target.tokenizer.json"]


def damage(folder, name, change):
    path = folder / name
    path.write_bytes(change(path.read_bytes()))


def rewrite(folder, change):
    config = json.loads((folder / "config.json").read_text())
    change(config)
    (folder / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (lambda f: damage(f, "model.safetensors", lambda b: b[:-100]), "model.safetensors is damaged: its checksum"),
        (
            lambda f: damage(f, "model.safetensors", lambda b: b[:-1] + b"\7"),
            "model.safetensors is damaged: its checksum",
        ),
        (lambda f: damage(f, "model.safetensors", lambda b: b""), "model.safetensors is damaged: its checksum"),
        (lambda f: (f / "model.safetensors").unlink(), "cannot read .*model.safetensors: .*No such file"),
        (lambda f: damage(f, "config.json", lambda b: b[:40]), "config.json is damaged"),
        (lambda f: damage(f, "config.json", lambda b: b"[]"), "config.json is damaged"),
        (lambda f: rewrite(f, lambda c: c.pop("format")), "config.json is damaged: 'format' is missing"),
        (lambda f: rewrite(f, lambda c: c.pop("sha256")), "cannot read .*model.safetensors: 'sha256' is missing"),
        (lambda f: rewrite(f, lambda c: c.pop("model")), "is damaged: 'model' is missing"),
        (
            lambda f: rewrite(f, lambda c: c.update(format=2)),
            "is of format 2 and this npad .* reads 1; install a newer npad",
        ),
        (lambda f: rewrite(f, lambda c: c["model"].update(units=9)), "is damaged: Error.* in loading state_dict"),
        (lambda f: rewrite(f, lambda c: c["model"].update(heads=9)), "is damaged: .*heads"),
        (
            lambda f: Subwords.learn(["x"], 257).save(f / "source.tokenizer.json"),
            "source.tokenizer.json is damaged: its checksum",
        ),
    ],
)
def test_damage_is_named(folder, harm, message):
    harm(folder)
    with pytest.raises(NpadError, match=message):
        npad.load(folder)


def test_a_vocabulary_that_does_not_fit_is_named(tmp_path):
    other = Subwords.learn(["x"], 257)
    checkpoint.save(tmp_path / "model", tiny(), (other, SUBWORDS), {})
    message = f"the vocabulary of .* does not fit: its source tokenizer has 257 symbols and its model {SUBWORDS.size}"
    with pytest.raises(StorageError, match=message):
        npad.load(tmp_path / "model")


def test_what_is_no_model_is_named(tmp_path):
    with pytest.raises(InvalidInput, match=r"there is no model .*nowhere: neither a folder nor a name"):
        npad.load(tmp_path / "nowhere")
    with pytest.raises(InvalidInput, match=r"holds no model: neither config.json, nor best-N"):
        npad.load(tmp_path)


def test_a_runs_best_is_its_newest(tmp_path, folder):
    for number in (9, 10, 100):
        shutil.copytree(folder, tmp_path / f"run/best-{number}")
    (tmp_path / "run/best-of-all").mkdir()
    model: Any = npad.load(tmp_path / "run").model
    assert model.name == "run/best-100"


def test_only_older_ones_of_a_kind_are_removed(tmp_path, folder):
    for name in ("best-9", "best-10", "best-10-copy", "best-keep", "best-11", "checkpoint-3"):
        shutil.copytree(folder, tmp_path / "run" / name)
    checkpoint.keep_only(tmp_path / "run/best-10")
    left = sorted(path.name for path in (tmp_path / "run").iterdir())
    assert left == ["best-10", "best-10-copy", "best-11", "best-keep", "checkpoint-3"]


def test_a_folder_is_replaced_and_what_a_kill_left_is_put_right(tmp_path):
    for text in ("old", "new"):
        with whole_folder(tmp_path / "model") as part:
            (part / "file").write_text(text)
    assert (tmp_path / "model/file").read_text() == "new"
    (tmp_path / "model").rename(tmp_path / ".model.old")  # as a process killed between the two renames leaves it
    (tmp_path / ".model.part").mkdir()
    (tmp_path / ".other.gone").mkdir()
    sweep(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    assert (tmp_path / "model/file").read_text() == "new"


def test_a_folder_appears_whole_or_not_at_all(tmp_path):
    def fail():
        with whole_folder(tmp_path / "new") as part:
            (part / "file").write_text("half")
            raise OSError(28, "No space left on device")

    with pytest.raises(StorageError, match=r"cannot write .*new: No space left on device"):
        fail()
    assert list(tmp_path.iterdir()) == []
    with whole_folder(tmp_path / "new") as part:
        (part / "file").write_text("whole")
        assert not (tmp_path / "new").exists()
    assert (tmp_path / "new/file").read_text() == "whole"
