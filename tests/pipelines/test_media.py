"""From pictures and recordings to a model that tells them apart."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from media import ENCODER, FEATURES, RATE, RECIPES, SMALL, TEXTS, contents, corpus, picture, tone
from npad import NPAD, Beam, InvalidInput, Noise, decode, score
from npad.errors import StorageError
from npad.models.cgru.fast import prepared
from npad.pipelines.pictures import read_picture
from npad.pipelines.sound import log_mel
from npad.storage import checkpoint
from npad.storage import jsonl as log
from npad.storage.regular import seal
from npad.training import run
from npad.training.prepare import prepare, write_store
from npad.training.sources import Pictures, SourceKind
from npad.training.store import Store
from runs import Enough, Stopping, weights

tasks = pytest.mark.parametrize("task", ["caption", "speech"])


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    """A store of each task."""
    folder = tmp_path_factory.mktemp("media")
    return {task: build(folder / task, task) for task in FEATURES}


def build(folder, task, **sizes) -> Store:
    files, reported = corpus(folder, task, **sizes), []
    options = {
        "vocabulary": 280,
        "features": FEATURES[task],
        "progress": lambda *x: reported.append(x),
    }
    store = prepare(folder / "store", **files, task=task, **options)
    source: Any = store.train.source
    task, count = f"reading {store.kind.source}s", len(np.unique(source.items))
    assert reported[:count] == [(task, number, count) for number in range(1, count + 1)]
    return store


def unseen(task):
    """Items that no model was trained on, and their texts."""
    if task == "caption":
        items = torch.stack([read_picture(picture(i % 2, 9000 + i), 16) for i in range(12)])
    else:
        items = [log_mel(tone(i % 2, 9000 + i), RATE, 10) for i in range(12)]
    return items, [TEXTS[task][i % 2] for i in range(12)]


def options(task, **changes):
    return SMALL | {"source_options": ENCODER[task]} | changes


@tasks
def test_a_store_holds_each_file_once_and_each_text(stores, task):
    store = stores[task].verify()
    assert store.about["splits"]["train"] | {"tokens": 0} == {
        "pairs": 80,
        "kept": 80,
        "empty": 0,
        "long": 0,
        "tokens": 0,
    }
    assert store.subwords[0] is None
    split, target = store.train, store.subwords[1]
    assert split.source.items.tolist() == [i // 2 for i in range(80)]
    rows = split.target.padded(np.arange(80), 9, 0).tolist()
    texts = [target.decode([token for token in row if token]) for row in rows]
    for pair in (0, 3, 79):
        assert texts[pair] == TEXTS[task][pair // 2 % 2]
    index = np.array([3, 0, 79])
    inputs, lengths = split.source.read(index, 1, 0)
    names = list(contents(task, 40, 1000))
    for row, pair in enumerate(index):
        content = contents(task, 40, 1000)[names[pair // 2]][0]
        expected = store.kind.read(content, "it")
        found = inputs[row] if lengths is None else inputs[row, : lengths[row]]
        torch.testing.assert_close(found, expected, atol=2e-3, rtol=2e-3)
    if lengths is not None:
        assert not inputs[0, lengths[0] :].any()
        seconds = store.about["longest_seconds"]
        assert seconds == pytest.approx(split.source.lengths.max() / 100)


@tasks
def test_a_model_learns_to_tell_pictures_or_tones_apart(tmp_path, stores, task):
    progress, reason = run.train(
        tmp_path / "run", stores[task].folder, options(task), RECIPES[task]
    )
    assert reason.endswith("epochs")
    saved = checkpoint.load(tmp_path / "run")
    assert saved.model.source == {"caption": "picture", "speech": "sound"}[task]
    assert saved.about.get("longest_seconds") == stores[task].about.get("longest_seconds")
    model, target = prepared(saved.model), saved.subwords[1]
    items, texts = unseen(task)
    for decoder in (Beam(2), NPAD(chains=3, noise=Noise(0.1))):
        found = decode(model, items, decoder, 30)
        assert [target.decode(best.tokens) for best, *_ in found] == texts
    right, wrong = (target.encode([text])[0] for text in TEXTS[task])
    (scores,) = score(model, items[:1], [[right, wrong]])
    assert scores[0] > scores[1]
    assert progress.best < 1.7


def test_captions_begin_with_the_frequencies_of_tokens(tmp_path, stores):
    """So that an encoder of pictures need not give all of them what is common to all captions."""
    store = stores["caption"]
    recipe = replace(RECIPES["caption"], learning_rate=1e-9, updates=1)
    run.train(tmp_path / "run", store.folder, options("caption"), recipe)
    model, target = checkpoint.load(tmp_path / "run").model, store.train.target
    counts = np.bincount(target.tokens, minlength=model.special.bos) + 1
    counts[model.special.eos] += len(store.train)
    assert counts.max() > 10 * counts.min()
    probabilities = model.logits.bias.softmax(0).detach().numpy()
    np.testing.assert_allclose(probabilities, counts / counts.sum(), rtol=1e-4)


@tasks
def test_a_run_in_parts_is_the_run_in_one_bit_for_bit(tmp_path, stores, task):
    """Augmentation included."""
    recipe = replace(RECIPES[task], epochs=2, validate=4, checkpoint=3, noise=Noise(0.2))
    how = options(task, dropout=0.3)
    run.train(tmp_path / "one", stores[task].folder, how, recipe)
    with pytest.raises(Enough):
        run.train(tmp_path / "two", stores[task].folder, how, recipe, watch=Stopping())
    whole = weights(tmp_path / "one")
    assert weights(tmp_path / "two") != whole
    run.resume(tmp_path / "two")
    assert weights(tmp_path / "two") == whole
    plain = replace(recipe, augment=False)
    run.train(tmp_path / "plain", stores[task].folder, how, plain)
    assert weights(tmp_path / "plain") != whole
    assert log.read(tmp_path / "plain/log.jsonl")[-1]["update"] > 0


@tasks
def test_a_run_prepares_its_store_from_files(tmp_path, task):
    files = corpus(tmp_path / "files", task, train=6, valid=4)
    data = {"task": task, **files, "vocabulary": 280, "features": FEATURES[task]}
    recipe = replace(RECIPES[task], epochs=1)
    run.train(tmp_path / "run", data, options(task), recipe)
    assert Store.open(tmp_path / "run/data").kind == SourceKind.named(task, FEATURES[task])
    run.resume(tmp_path / "run", epochs=2)
    assert checkpoint.load(tmp_path / "run").model.source_encoder.options.items() >= (
        FEATURES[task].items()
    )


def test_a_picture_may_have_any_number_of_texts(tmp_path):
    pixels = torch.zeros(3, 16, 16, dtype=torch.uint8)
    long = "word " * 40
    items = [(pixels, ["a dog", "", long]), (pixels + 1, []), (pixels + 2, ["a cat"])]
    task = SourceKind.named("caption", {"size": 16})
    store = write_store(tmp_path / "store", task, {"train": items}, 300, max_length=20)
    assert store.about["splits"]["train"] == {
        "pairs": 4,
        "kept": 2,
        "empty": 1,
        "long": 1,
        "tokens": [9, store.train.target.ends[-1]],
    }
    assert (store.valid, store.about["joint"]) == (None, False)
    (dog,) = store.subwords[1].encode(["a dog"])
    how = {"max_length": len(dog), "tokenizer": store.folder / "target.tokenizer.json"}
    again = write_store(str(tmp_path / "again"), task, {"train": items[:1]}, **how)
    assert again.about["splits"]["train"]["tokens"][1] == len(dog)
    source = store.train.source
    assert isinstance(source, Pictures)
    assert (source.items.tolist(), source.positions.tolist()) == ([0, 2], [4, 4])
    assert source.read(np.array([1]), 1, 0)[0].unique().tolist() == [2]


MISTAKES = [
    ({"task": "video"}, "task must be one of 'caption', 'speech', not 'video'"),
    ({"features": {"rate": 8000}}, "a picture has no feature 'rate'; it has size"),
    ({"features": {"size": 0}}, "size must be a whole number of at least 1, not 0"),
    ({"features": [16]}, "features must be a dictionary"),
    ({"vocabulary": 0}, "vocabulary must be a whole number of at least 1, not 0"),
    ({"train": "files.tar"}, "train must be two files"),
    ({"train": ("no.tar", "no.tsv")}, "cannot read no.tar: there is no such file"),
    ({"epochs": 3}, "the fields of MediaData"),
]


@pytest.mark.parametrize(("changes", "message"), MISTAKES)
def test_a_mistake_is_named_before_anything_is_written(tmp_path, changes, message):
    data = {"task": "caption", **corpus(tmp_path / "files", "caption", 2, 2), **changes}
    with pytest.raises(InvalidInput) as refused:
        run.train(tmp_path / "run", data, options("caption"), RECIPES["caption"])
    assert message in str(refused.value)
    assert not (tmp_path / "run").exists()


def test_a_model_has_the_features_of_its_data(tmp_path, stores):
    for wrong, message in [
        ({"source_options": {"size": 32}}, "the data has size 16, and the model cannot have 32"),
        ({"source_options": {"bins": 4}}, "has no option 'bins'"),
        ({"source_options": 3}, "source_options must be a dictionary, not 3"),
        ({"source": "sound"}, "AttentionModel has no option 'source'"),
    ]:
        with pytest.raises(InvalidInput) as refused:
            run.train(tmp_path / "run", stores["caption"].folder, SMALL | wrong, RECIPES["caption"])
        assert message in str(refused.value)


def test_a_file_that_is_no_picture_is_named(tmp_path):
    files = corpus(tmp_path / "files", "caption", 4, 2)
    (tmp_path / "files/folder").mkdir()
    (tmp_path / "files/folder/broken.png").write_bytes(b"no picture")
    (tmp_path / "files/broken.tsv").write_text("broken.png\ta dog\n")
    train = (str(tmp_path / "files/folder"), str(tmp_path / "files/broken.tsv"))
    with pytest.raises(InvalidInput, match=r"broken\.png is not a picture"):
        prepare(tmp_path / "store", train, files["valid"], 280, task="caption")
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize(
    ("item", "message"),
    [
        (torch.zeros(3, 16, 16), r"picture 0 must be a uint8 tensor \[3, 16, 16\]"),
        (torch.zeros(3, 16, 8, dtype=torch.uint8), r"not \[3, 16, 8\]"),
    ],
)
def test_an_item_of_another_shape_is_refused(tmp_path, item, message):
    task = SourceKind.named("caption", {"size": 16})
    with pytest.raises(InvalidInput, match=message):
        write_store(tmp_path / "store", task, {"train": [(item, ["a dog"])]}, 300)


def test_a_store_without_a_text_is_refused(tmp_path):
    task = SourceKind.named("speech", {"bins": 4})
    for items, message in [
        ([], "train has no sounds"),
        ([(torch.zeros(3, 4), [""])], "no text of train is left: 1 are empty"),
        ([(torch.zeros(0, 4), ["one"])], r"sound 0 must be a floating-point tensor \[frames, 4\]"),
    ]:
        with pytest.raises(InvalidInput, match=message):
            write_store(tmp_path / "store", task, {"train": items}, 300)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"task": "video"}, "task must be one of 'caption', 'speech', not 'video'"),
        ({"features": {"bins": 3}}, "a picture has no feature 'bins'"),
    ],
)
def test_a_store_that_was_edited_is_refused(tmp_path, changes, message):
    store = build(tmp_path, "caption", train=4, valid=2)
    path = store.folder / "store.json"
    about = {k: v for k, v in json.loads(path.read_text()).items() if k != "digest"}
    path.write_text(json.dumps(seal(about | changes)))
    with pytest.raises(StorageError, match=message):
        Store.open(store.folder)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda f: (f / "train/source.items").write_bytes(b"\0" * 8), "source.items is damaged"),
        (lambda f: (f / "train/source.pixels").write_bytes(b"\0" * 9), "source.pixels is damaged"),
        (lambda f: (f / "train/source.pixels").unlink(), "source.pixels"),
    ],
)
def test_damage_to_a_store_is_named(tmp_path, damage, message):
    store = build(tmp_path, "caption", train=4, valid=2)
    damage(store.folder)
    with pytest.raises(StorageError, match=message):
        store.verify()
