"""The training of the reports' models, rehearsed on drawn pictures and tones."""

from __future__ import annotations

import io
import lzma
import tarfile

import numpy as np
import pytest
import torch

from media import contents
from npad import Greedy, decode
from npad.experiments import train_tasks
from npad.experiments.train_tasks import epoch_seconds, main, pictures, store, train
from npad.storage import checkpoint, jsonl
from npad.training.store import Store
from npad.training.tasks import Task
from test_digits import corpus  # noqa: F401, a fixture

TINY = {
    "caption": {"units": 8, "embedding": 6, "source_options": {"channels": [2, 2, 2, 2]}},
    "speech": {"units": 8, "embedding": 6, "source_options": {"channels": 4}},
}


@pytest.fixture(scope="module")
def data(corpus):  # noqa: F811
    """A folder like the data of the reports: the digits of `corpus`, and drawn photographs."""
    (corpus / "flickr8k").mkdir()
    with tarfile.open(corpus / "flickr8k/images-80px.tar", "w") as archive:
        for split, count, seed in (("train", 12, 100), ("valid", 9, 200)):
            lines = ""
            for name, (content, kind) in contents("caption", count, seed).items():
                member = tarfile.TarInfo(name)
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
                lines += f"{name}\tA {('red', 'blue')[kind]} thing , {name} .\n" * 2
            (corpus / f"flickr8k/{split}.tsv.xz").write_bytes(lzma.compress(lines.encode()))
    return corpus


@pytest.mark.parametrize("kind", ["caption", "speech"])
def test_a_model_is_trained_and_packed_within_a_time(tmp_path, data, kind, monkeypatch, capsys):
    monkeypatch.setitem(train_tasks.OPTIONS, kind, TINY[kind])
    monkeypatch.setitem(train_tasks.MAX_EPOCHS, kind, 3)
    monkeypatch.setattr(train_tasks, "STRINGS", {"train": 12, "valid": 4})
    out = tmp_path / "out"
    arguments = [kind, "--data", str(data), "--out", str(out), "--device", "cpu"]
    main([*arguments, "--minutes", "5"])
    printed = capsys.readouterr().out
    assert "stopped after 3 epochs" in printed
    saved = checkpoint.load(out / "model")
    assert saved.about["training"]["epoch"] <= 3
    source = torch.zeros(1, 3, 80, 80, dtype=torch.uint8) if kind == "caption" else []
    if kind == "speech":
        assert "clean validation strings: WER" in printed
        assert saved.about["longest_seconds"] > 1
        source = [torch.zeros(30, 40)]
    else:
        assert "thing" in printed
    assert len(decode(saved.model, source, Greedy(), 5)) == 1


def test_shuffled_pictures_have_the_captions_of_others(data):
    task = Task.named("caption")
    own = dict(enumerate(captions for _, captions in pictures(task, data, "train", False)))
    others = dict(enumerate(captions for _, captions in pictures(task, data, "train", True)))
    assert sorted(own.values()) == sorted(others.values())
    assert all(own[i] != others[i] for i in own)


def test_short_strings_are_trained_on_and_not_validated_on(tmp_path, data):
    store("speech", data, tmp_path / "store", {"train": 60, "valid": 30})
    opened = Store.open(tmp_path / "store")
    words = {}
    for split in ("train", "valid"):
        side = getattr(opened, split).target
        rows = side.padded(np.arange(len(side.ends)), int(side.lengths.max()), 0).tolist()
        texts = [opened.subwords[1].decode([t for t in row if t]) for row in rows]
        words[split] = {len(text.split()) for text in texts}
    assert words == {"train": set(range(1, 9)), "valid": set(range(3, 9))}


def test_the_time_of_an_epoch_is_that_of_its_second_half(tmp_path):
    for record in (
        {"update": 10, "seconds": 50.0, "perplexity": 2.0},
        {"update": 20, "seconds": 60.0, "perplexity": 2.0},
        {"update": 30, "seconds": 62.0, "perplexity": 2.0},
        {"update": 40, "seconds": 64.0, "perplexity": 2.0},
        {"update": 40, "seconds": 65.0, "valid_perplexity": 2.0},
    ):
        jsonl.append(tmp_path / "log.jsonl", record)
    assert epoch_seconds(tmp_path / "log.jsonl") == pytest.approx(0.2 * 40 + 1)


def test_a_seed_decides(tmp_path, data):
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        changes = {"options": TINY["caption"], "epochs": 1, "seed": seed, "updates": 2}
        train("caption", data, tmp_path / name, 0.0, torch.device("cpu"), **changes)
    first, same, other = ((tmp_path / n / "model/model.safetensors").read_bytes() for n in "abc")
    assert first == same != other
