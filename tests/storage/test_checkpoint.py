"""Models on disk: whole or not there, and every kind of damage named."""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import npad
from checkpoint_cases import SUBWORDS, tiny
from npad.errors import InvalidInput, NpadError, OutOfMemory, StorageError
from npad.models.int8 import SCALE
from npad.storage import checkpoint
from npad.storage.atomic import atomic_folder, recover
from npad.text.subwords import Subwords


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


def test_plain_files_that_others_can_read_are_written_and_matrices_packed_on_request(
    tmp_path, folder
):
    names = ["config.json", "model.safetensors", "source.tokenizer.json", "target.tokenizer.json"]
    assert sorted(path.name for path in folder.iterdir()) == names
    checkpoint.save(tmp_path / "packed", tiny(), (SUBWORDS, SUBWORDS), {}, packed=True)
    for name, dtype in (("model", torch.float32), ("packed", torch.int8)):
        path = tmp_path / name / "model.safetensors"
        assert path.stat().st_mode & 0o777 == 0o644
        assert load_file(path)["source_embedding.weight"].dtype == dtype


def test_options_that_older_folders_lack_have_their_defaults(folder):
    before = checkpoint.load(folder).model.options
    names = ("eos", "layers", "tied")
    rewrite(folder, lambda config: [config["model"].pop(name) for name in names])
    assert checkpoint.load(folder).model.options == before


def rewrite(folder, change):
    """Change a configuration that, like older ones, has no checksum of its own."""
    config = json.loads((folder / "config.json").read_text())
    config["sha256"].pop("config.json")
    change(config)
    (folder / "config.json").write_text(json.dumps(config))


DAMAGES: dict[str, Callable[[dict[str, Any]], object]] = {
    "config.json is damaged: 'format' is missing": lambda c: c.pop("format"),
    "cannot read .*model.safetensors: 'sha256' is missing": lambda c: c.pop("sha256"),
    "is damaged: 'model' is missing": lambda c: c.pop("model"),
    "is of format 2 and this npad .* reads 1; install a newer npad": lambda c: c.update(format=2),
    "is of format 0 and this npad .* reads 1; it is not an npad": lambda c: c.update(format=0),
    "is of format two and this npad .* reads 1; it is not": lambda c: c.update(format="two"),
    "holds a Hugging Face model; write hf:": lambda c: [c.pop("format"), c.update(model_type="t5")],
    r"safetensors does not fit config.json: encoder.bias_hh_l0 is \[24\], not \[27\]": lambda c: c[
        "model"
    ].update(units=9),
    "is damaged: .*heads": lambda c: c["model"].update(heads=9),
    "is damaged: tied must be True or False": lambda c: c["model"].update(tied="no"),
    "is damaged: 'model' must hold the model's options": lambda c: c.update(model=3),
    "config.json is damaged: 'training' must hold a recipe": lambda c: c.update(training=3),
    "damaged: 'training' must hold a recipe's": lambda c: c.update(training={"recipe": 3}),
    "eos must be 0, the end token of npad's vocabularies": lambda c: c["model"].update(eos=1),
}


@pytest.mark.parametrize("message", DAMAGES)
def test_a_flaw_of_the_configuration_is_named(folder, message):
    rewrite(folder, DAMAGES[message])
    with pytest.raises(NpadError, match=message):
        npad.load(folder)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("model.safetensors", lambda b: b[:-100], "model.safetensors is damaged: .*header"),
        ("model.safetensors", lambda b: b[:-1] + b"\7", "safetensors is damaged: its checksum"),
        ("model.safetensors", None, "cannot read .*model.safetensors: .*No such file"),
        ("config.json", lambda b: b[:40], "config.json is damaged"),
        ("config.json", lambda b: b"[]", "config.json is damaged"),
        ("source.tokenizer.json", lambda b: b + b" ", "tokenizer.json is damaged: its checksum"),
    ],
)
def test_a_damaged_file_is_named_and_its_checksum_checked_without_loading(
    folder, name, change, message
):
    path = folder / name
    path.write_bytes(change(path.read_bytes())) if change else path.unlink()
    with pytest.raises(NpadError, match=message):
        npad.load(folder)
    if not path.exists():
        path.mkdir()
        with pytest.raises(StorageError, match=f"cannot read {path}: it is a folder"):
            npad.load(folder)
    if "checksum" in message:
        with pytest.raises(StorageError, match=message):
            checkpoint.verify(folder)


@pytest.mark.parametrize(
    "change",
    [
        lambda c: c["model"].update(tied=True),
        lambda c: c["model"].update(dropout=0.5),
        lambda c: c["training"].update(update=4),
        lambda c: c.update(more=1),
    ],
    ids=["tied", "dropout", "training", "more"],
)
def test_a_configuration_that_was_edited_is_refused(folder, change):
    config = json.loads((folder / "config.json").read_text())
    change(config)
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(StorageError, match=r"config.json is damaged: its checksum"):
        npad.load(folder)


@pytest.mark.parametrize("tied", [False, True])
def test_tied_weights_are_not_taken_for_others(tmp_path, tied):
    checkpoint.save(tmp_path / "model", tiny(tied=tied), (SUBWORDS, SUBWORDS), {})
    rewrite(tmp_path / "model", lambda config: config["model"].update(tied=not tied))
    problem = "missing" if tied else "unknown"
    with pytest.raises(StorageError, match=f"does not fit config.json: logits.weight is {problem}"):
        npad.load(tmp_path / "model")


@pytest.mark.parametrize("packed", [False, True])
def test_a_tensor_too_many_or_too_few_or_of_another_kind_is_refused(tmp_path, packed):
    folder = tmp_path / "model"
    checkpoint.save(folder, tiny(), (SUBWORDS, SUBWORDS), {}, packed=packed)
    # Copies: an old safetensors maps the file, which is overwritten below.
    sound = {name: x.clone() for name, x in load_file(folder / "model.safetensors").items()}
    bias = sound["logits.bias"]
    for change, message in (
        ({"more": torch.ones(3)}, "more is unknown"),
        ({"logits.bias": bias[:-1].clone()}, r"logits.bias is \["),
        ({"logits.bias": bias.long()}, "logits.bias is I64, neither floating-point nor int8"),
        (
            {"logits.bias": bias.to(torch.int8), f"logits.bias{SCALE}": bias.float()},
            "logits.bias is I8, neither floating-point nor int8 with scales",
        ),
        (
            {"logits.bias": bias.to(torch.int8)},
            "logits.bias is I8, neither floating-point nor int8 with scales",
        ),
        (
            {"source_embedding.weight": sound["source_embedding.weight"].to(torch.int8)}
            | {f"source_embedding.weight{SCALE}": bias.float()[:3].clone()},
            "source_embedding.weight is I8, neither floating-point nor int8 with scales",
        ),
        ({"logits.bias": None}, "logits.bias is missing"),
    ):
        changed = {name: tensor for name, tensor in (sound | change).items() if tensor is not None}
        save_file(changed, folder / "model.safetensors")
        with pytest.raises(StorageError, match=message):
            npad.load(folder)


def test_weights_are_set_all_of_them_and_no_others():
    model, sound = tiny(), dict(tiny().named_parameters())
    for weights in (sound | {"more": torch.ones(1)}, {"logits.bias": sound["logits.bias"]}):
        with pytest.raises(StorageError, match="the weights do not fit the model"):
            checkpoint.set_weights(model, weights)


@pytest.mark.parametrize(
    "change",
    [
        {"layers": 2},
        {"layers": 10**12},
        *(
            {name: n}
            for name in ("embedding", "units", "source_vocabulary")
            for n in (10**6, 10**30)
        ),
    ],
    ids=str,
)
def test_a_size_that_the_weights_do_not_have_costs_nothing(folder, change):
    rewrite(folder, lambda config: config["model"].update(change))
    began = time.process_time()
    with pytest.raises(StorageError) as caught:
        npad.load(folder)
    assert "\n" not in str(caught.value)
    assert time.process_time() - began < 2


def test_weights_beyond_the_memory_are_refused_before_they_are_read(folder, monkeypatch):
    monkeypatch.setattr(checkpoint, "total_memory", lambda device: 1000)
    monkeypatch.setattr(checkpoint, "load_file", None)
    refusal = r"model.safetensors need 0 GiB and there are 0; load them on a larger"
    with pytest.raises(OutOfMemory, match=refusal):
        npad.load(folder)


def test_weights_that_just_fit_are_loaded(folder, monkeypatch):
    size = sum(4 * parameter.numel() for parameter in tiny().parameters())
    for memory in (size, size - 1):
        monkeypatch.setattr(checkpoint, "total_memory", lambda device, memory=memory: memory)
        with nullcontext() if memory == size else pytest.raises(OutOfMemory):
            checkpoint.load(folder)


def test_a_vocabulary_that_does_not_fit_is_named(tmp_path):
    other = Subwords.learn(["x"], 257)
    checkpoint.save(tmp_path / "model", tiny(), (other, SUBWORDS), {})
    message = f"does not fit: its source tokenizer has 257 tokens and its model {SUBWORDS.size}"
    with pytest.raises(StorageError, match=message):
        npad.load(tmp_path / "model")


def test_a_folder_that_is_no_model_is_named(tmp_path):
    with pytest.raises(InvalidInput, match=r"no model .*nowhere: neither a folder nor a name"):
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
        with atomic_folder(tmp_path / "model") as part:
            (part / "file").write_text(text)
    assert (tmp_path / "model/file").read_text() == "new"
    # As a process killed between the two renames leaves it.
    (tmp_path / "model").rename(tmp_path / ".model.old")
    (tmp_path / ".model.part").mkdir()
    (tmp_path / ".other.gone").mkdir()
    recover(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    assert (tmp_path / "model/file").read_text() == "new"


def test_a_folder_appears_whole_or_not_at_all(tmp_path):
    def fail():
        with atomic_folder(tmp_path / "new") as part:
            (part / "file").write_text("half")
            raise OSError(28, "No space left on device")

    with pytest.raises(StorageError, match=r"cannot write .*new: No space left on device"):
        fail()
    assert list(tmp_path.iterdir()) == []
    with atomic_folder(tmp_path / "new") as part:
        (part / "file").write_text("whole")
        assert not (tmp_path / "new").exists()
    assert (tmp_path / "new/file").read_text() == "whole"


def test_a_model_that_does_not_fit_in_memory_is_not_called_damaged(folder, monkeypatch):
    def fail(**options):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried 7 bytes")

    monkeypatch.setattr(checkpoint, "ensure_weights_fit", lambda *_: None)
    monkeypatch.setattr(checkpoint, "AttentionModel", fail)
    with pytest.raises(OutOfMemory, match="load the model on a larger machine"):
        checkpoint.load(folder)


def test_weights_are_named_by_their_checksum(folder):
    """By that of config.json, which is not there in damaged folders."""
    digest = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    assert checkpoint.weights_digest(folder) == digest
    rewrite(folder, lambda config: config.pop("sha256"))
    with pytest.raises(StorageError, match=r"config.json is damaged: 'sha256' is missing"):
        checkpoint.weights_digest(folder)
    with pytest.raises(StorageError, match=r"cannot read .*config.json: "):
        checkpoint.load_tensors(folder / "config.json")


def test_texts_have_two_vocabularies_and_other_sources_are_refused_by_what_they_are(folder):
    saved = checkpoint.load(folder)
    assert saved.text_subwords() == saved.subwords
    with pytest.raises(InvalidInput, match="model is a model of texts; this needs a model of"):
        replace(saved, subwords=(None, SUBWORDS)).text_subwords()


@pytest.mark.parametrize(
    ("about", "kind", "files"),
    [
        ({"model": {}}, "text", ("source.tokenizer.json", "target.tokenizer.json")),
        ({"model": {"source": "image"}}, "image", ("target.tokenizer.json",)),
        ({"model": 3}, "text", ("source.tokenizer.json", "target.tokenizer.json")),
    ],
)
def test_pictures_and_sounds_have_no_tokenizer(about, kind, files):
    assert checkpoint.source_kind(about) == kind
    assert checkpoint.tokenizer_files(about) == files
