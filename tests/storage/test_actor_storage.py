"""An actor beside its model: it comes back as it was, and damage is named."""

from __future__ import annotations

import json
import shutil

import pytest
import torch

import npad
from npad import InvalidInput, SteeredSearch
from npad.errors import StorageError
from npad.models.actors import Actor
from npad.storage.actors import install_actor, load_actor, model_checksum, read_actor, save_actor
from npad.storage.regular import seal


@pytest.fixture
def with_actor(model_copy):
    model = npad.load(model_copy).model
    torch.manual_seed(0)
    actor = Actor.for_model(model, inputs=["state", "source"], units=8)
    torch.nn.init.normal_(actor.parts[0].last.weight)
    save_actor(model_copy, actor, model_checksum(model_copy), {"update": 3})
    return model_copy, actor


def test_an_actor_comes_back_as_it_was(with_actor):
    folder, actor = with_actor
    loaded = load_actor(folder)
    assert read_actor(folder)["format"] == 1  # which later versions read
    for name, weight in actor.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], weight.half().float())
    translator = npad.load(folder)
    (found,) = translator.translate(["babe bibo"], SteeredSearch())
    assert found.signature.startswith("steered|inner:greedy")
    assert found.log_prob == pytest.approx(
        translator.score(["babe bibo"], [found.text])[0], abs=1e-4
    )


@pytest.mark.parametrize(
    "change",
    [
        lambda about: about["actor"].update(units=9),
        lambda about: about["actor"].update(kind="none"),
        lambda about: about["actor"].update(other=1),
        lambda about: about.pop("actor"),
        lambda about: about.pop("sha256"),
        lambda about: about.update(sha256=[]),
    ],
)
def test_an_actor_that_was_edited_and_sealed_again_is_refused(with_actor, change):
    folder, _ = with_actor
    about = json.loads((folder / "actor.json").read_text())
    del about["digest"]
    change(about)
    (folder / "actor.json").write_text(json.dumps(seal(about)))
    with pytest.raises(StorageError, match=r"actor\.json is damaged: (?!\w*Error;).*; ") as refused:
        load_actor(folder)
    assert "\n" not in str(refused.value)


def test_damage_and_another_models_actor_are_named(with_actor):
    folder, actor = with_actor
    weights, about = folder / "actor.safetensors", folder / "actor.json"
    kept = weights.read_bytes(), about.read_bytes()
    weights.write_bytes(kept[0][:-1] + b"x")
    with pytest.raises(
        StorageError, match=f"^{weights} is damaged: its checksum is not the one in"
    ):
        npad.load(folder)
    weights.unlink()
    with pytest.raises(StorageError, match="cannot read"):
        npad.load(folder)
    weights.write_bytes(kept[0])
    about.write_text(about.read_text().replace('"units": 8', '"units": 9'))
    with pytest.raises(StorageError, match="damaged or was edited"):
        npad.load(folder)
    about.write_text('{"format": 7}')
    with pytest.raises(StorageError, match="is of format 7"):
        npad.load(folder)
    save_actor(folder, actor, "of another model", {})
    with pytest.raises(StorageError, match="trained for other weights"):
        npad.load(folder)
    with pytest.raises(StorageError, match="trained for other weights"):
        install_actor(folder, folder)
    save_actor(folder, actor, model_checksum(folder), {"update": 3})
    kept = about.read_bytes(), weights.read_bytes()
    other = shutil.copytree(
        folder, folder.with_name("other"), ignore=lambda *_: [about.name, weights.name]
    )
    install_actor(folder, other)
    assert kept == tuple((other / path.name).read_bytes() for path in (about, weights))
    about.unlink()
    assert getattr(npad.load(folder).model, "actor") is None  # noqa: B009
    assert read_actor(folder) is None
    with pytest.raises(InvalidInput, match="holds no actor"):
        install_actor(folder, folder)
