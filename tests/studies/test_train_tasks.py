"""The training of the reports' models, rehearsed on drawn pictures and tones."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from media import write_flickr
from npad import Greedy, decode
from npad.models.encoders.efficientnet import EfficientNet
from npad.storage import checkpoint, jsonl
from npad.training import prepare as preparing
from npad.training import run
from npad.training.sources import SourceKind
from npad.training.store import Store
from runs import TINY
from speech_cases import corpus  # noqa: F401, a fixture
from studies.tasks import train as train_tasks
from studies.tasks.train import data_of, epoch_seconds, main, shuffle, train, write

OPTIONS = {
    "caption": TINY,
    "caption-scratch": TINY | {"source_options": {"channels": [2, 2, 2]}},
    "speech": TINY | {"source_options": {"channels": 4}},
}


@pytest.fixture(scope="module")
def data(corpus):  # noqa: F811
    """A folder like the data of the reports: the digits of `corpus`, and drawn photographs."""

    def captions(name: str, colour: str) -> str:
        return f"{name}\tA {colour} thing , {name} .\n" * 2

    write_flickr(corpus / "flickr8k", {"train": (12, 100), "valid": (9, 200)}, captions)
    return corpus


@pytest.fixture(autouse=True)
def network(monkeypatch):
    """A network with random weights stands for the pretrained one."""
    torch.manual_seed(0)
    weights = {name: x.half() for name, x in EfficientNet().state_dict().items()}
    monkeypatch.setattr(preparing, "fetch_network", lambda name, at_hand: weights)
    for kind, options in OPTIONS.items():
        monkeypatch.setitem(train_tasks.OPTIONS, kind, options)
        monkeypatch.setitem(train_tasks.MAX_EPOCHS, kind.split("-")[0], 3)
    monkeypatch.setattr(train_tasks, "STRINGS", {"train": 60, "valid": 30})


@pytest.mark.parametrize("kind", ["caption", "caption-shuffled", "caption-scratch", "speech"])
def test_a_model_is_trained_and_packed_within_a_time(tmp_path, data, kind, capsys):
    out = tmp_path / "out"
    main([kind, "--data", str(data), "--out", str(out), "--device", "cpu", "--minutes", "5"])
    printed = capsys.readouterr().out
    assert "stopped after 3 epochs" in printed
    saved = checkpoint.load(out / "model")
    if kind == "speech":
        assert saved.about["longest_seconds"] > 1
        source = [torch.zeros(30, 40)]
    else:
        scratch = kind == "caption-scratch"
        encoder = {"channels": [2, 2, 2]} if scratch else {"network": "efficientnet-lite1"}
        assert saved.model.source_encoder.options == {"size": 80} | encoder
        source = torch.zeros(1, 3, 80, 80, dtype=torch.uint8)
    assert len(decode(saved.model, source, Greedy(), 5)) == 1


def test_shuffled_pictures_have_the_captions_of_others(tmp_path, data):
    main(["store", "--data", str(data), "--out", str(tmp_path / "pictures")])
    store = Store.open(tmp_path / "pictures").verify()
    shuffle(store, tmp_path / "shuffled")
    other = Store.open(tmp_path / "shuffled").verify()
    for own, another in ((store.train, other.train), (store.valid, other.valid)):
        assert (own.source.items != another.source.items).all()
        assert sorted(own.source.items) == sorted(another.source.items)
        assert np.array_equal(own.target.tokens, another.target.tokens)
        assert (own.source.items[::2] == own.source.items[1::2]).all()
        assert (another.source.items[::2] == another.source.items[1::2]).all()


def test_features_in_the_store_are_those_of_the_model(tmp_path, data):
    """So that a model decodes pictures as it was trained on their features."""
    main(["store", "--data", str(data), "--out", str(tmp_path / "pictures")])
    folder = train(
        "caption", tmp_path / "pictures", tmp_path / "out", torch.device("cpu"), epochs=1
    )
    model = checkpoint.load(folder).model
    task = SourceKind.named("caption")
    pixels = torch.stack([picture for picture, _ in train_tasks.pictures(task, data, "valid")])
    cells = Store.open(tmp_path / "pictures").valid.source.read(np.arange(0, 18, 2), 1, 0)[0]
    torch.testing.assert_close(
        model.begin(pixels, None).memory, model.begin(cells, None).memory, atol=2e-2, rtol=2e-2
    )


def test_short_strings_are_trained_on_and_not_validated_on(tmp_path, data):
    opened = write("speech", data, tmp_path / "store")
    words = {}
    for split in ("train", "valid"):
        side = getattr(opened, split).target
        rows = side.padded(np.arange(len(side.ends)), int(side.lengths.max()), 0).tolist()
        texts = [opened.subwords[1].decode([t for t in row if t]) for row in rows]
        words[split] = {len(text.split()) for text in texts}
    assert words == {"train": set(range(1, 9)), "valid": set(range(3, 9))}


def test_the_time_of_an_epoch_is_that_of_its_second_half(tmp_path):
    log = tmp_path / "log.jsonl"
    for update, seconds in ((10, 50.0), (20, 60.0), (30, 62.0), (40, 64.0)):
        jsonl.append(log, {"update": update, "seconds": seconds, "perplexity": 2.0})
    jsonl.append(log, {"update": 40, "seconds": 65.0, "valid_perplexity": 2.0})
    assert epoch_seconds(log) == pytest.approx(0.2 * 40 + 1)


def test_the_same_command_continues_an_interrupted_training(tmp_path, data, capsys):
    command = ["speech", "--data", str(data), "--device", "cpu", "--epochs", "2", "--batch", "900"]
    main([*command, "--out", str(tmp_path / "whole")])
    store = data_of("speech", data, tmp_path / "parts", None)
    device = torch.device("cpu")
    train("speech", store, tmp_path / "parts", device, epochs=2, batch=900, updates=1)
    run.resume(tmp_path / "parts/run", updates=None)
    main([*command, "--out", str(tmp_path / "parts")])
    whole, parts = (tmp_path / f"{name}/model/model.safetensors" for name in ("whole", "parts"))
    assert whole.read_bytes() == parts.read_bytes()
