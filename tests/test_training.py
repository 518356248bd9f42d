"""Training: the loss is the mean NLL, updates are deterministic, and a run can stop anywhere."""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import distributed

from npad import Adaptive, Constant, Fixed, InvalidInput, Noise, Noisy, Orthogonal, StudentT
from npad.errors import NpadError, StorageError, TrainingError
from npad.models.cgru.model import AttentionModel
from npad.storage import checkpoint
from npad.storage import jsonl as log
from npad.storage.atomic import exclusive_lock
from npad.storage.regular import file_digest
from npad.storage.sealed import seal
from npad.training import run
from npad.training.batches import Batcher
from npad.training.likelihood import nll
from npad.training.loop import Loop, Watch
from npad.training.noise import TrainingNoise
from npad.training.prepare import prepare
from npad.training.processes import Processes
from npad.training.recipe import Recipe
from npad.training.sizes import parameters
from npad.training.store import Store
from npad.training.update import Updater
from runs import ROOT, TINY, small_store, weights

TWO_RUN = "--units 8 --embedding 6 --dropout 0 --batch 300 --optimiser sgd --device cpu"
SHORT = Recipe(batch=120, epochs=3, checkpoint=4, learning_rate=0.01)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return small_store(tmp_path_factory.mktemp("training"))


def tiny(store, seed=0, **changes):
    torch.manual_seed(seed)
    source, target = store.subwords
    return AttentionModel(source.size, target.size, **(TINY | changes))


def updater(store, recipe=SHORT, **changes):
    return Updater(tiny(store, **changes), store.train, recipe, torch.device("cpu"))


class Heard(Watch):
    def __init__(self):
        self.records = []

    def report(self, record):
        self.records.append(record)


def train(folder, store, recipe=SHORT, **options):
    return run.train(folder, store.folder, TINY | options, recipe)


def test_the_gradient_is_of_the_mean_over_sentences(store):
    """The mean of the summed NLL of each sentence, end token included, computed one by one."""
    one = updater(store)
    pairs = np.array([0, 5, 9, 11])
    summed = one.gradient(pairs, 1)
    together = [parameter.grad.clone() for parameter in one.model.parameters()]
    one.optimiser.zero_grad()
    batcher = Batcher(store.train, one.model.special, 10**6)
    alone = [nll(one.model, batcher.batch(np.array([pair]))) for pair in pairs]
    (sum(alone) / 4).backward()
    assert float(summed) == pytest.approx(float(sum(alone).detach()), rel=1e-5)
    for gradient, parameter in zip(together, one.model.parameters(), strict=True):
        torch.testing.assert_close(gradient, parameter.grad, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("optimiser", ["sgd", "adadelta", "adam"])
def test_every_optimiser_lowers_the_loss(store, optimiser):
    one = updater(store, Recipe(optimiser=optimiser))
    pairs = np.arange(40)
    losses = [float(one.update(pairs, 1 + i)[0]) for i in range(12)]
    assert losses[-1] < 0.995 * losses[0]


def test_adadelta_is_the_papers(store):
    one = updater(store, Recipe(optimiser="adadelta")).optimiser
    assert one.defaults["rho"] == 0.95
    assert one.defaults["eps"] == 1e-6


def test_a_long_gradient_is_brought_down_and_a_short_one_left(store):
    for clip, expected in ((1.0, 1.0), (1e6, None)):
        one = updater(store, Recipe(optimiser="sgd", learning_rate=1.0, clip=clip))
        before = [parameter.detach().clone() for parameter in one.model.parameters()]
        _, norm = one.update(np.arange(30), 1).tolist()
        moved = math.sqrt(
            sum(
                float((a - b.detach()).square().sum())
                for a, b in zip(before, one.model.parameters(), strict=True)
            )
        )
        assert norm > 1
        assert moved == pytest.approx(expected or norm, rel=1e-3)


def test_dropout_is_of_the_update_alone(store):
    one = updater(store, dropout=0.5)
    pairs = np.arange(20)
    assert (
        float(one.gradient(pairs, 7))
        == float(one.gradient(pairs, 7))
        != float(one.gradient(pairs, 8))
    )


class WholeBatch(Processes):
    """A process of some rank that is given all pairs, and has no others to add to."""

    def share(self, pairs):
        return pairs


def test_dropout_differs_between_processes(store):
    """Else the shares of a batch would all drop the same units."""
    pairs = np.arange(20)

    def losses(dropout):
        model, device = tiny(store, dropout=dropout), torch.device("cpu")
        updaters = [Updater(model, store.train, SHORT, device, WholeBatch(rank)) for rank in (0, 1)]
        return [float(one.gradient(pairs, 7)) for one in updaters]

    first, second = losses(dropout=0.5)
    assert first != second
    first, second = losses(dropout=0.0)
    assert first == second


def test_training_noise_is_decoding_noise(store):
    """The same `Noise` with the same keys gives the logits of a noisy model on the same tokens."""
    model = tiny(store).double().eval()
    noise, ids = Noise(0.4, Constant(), StudentT(4)), torch.tensor([4, 2])
    batch = Batcher(store.train, model.special, 10**6).batch(ids.numpy())
    state = model.begin(batch.source, batch.lengths)
    given = TrainingNoise(noise, 3, ids, torch.tensor([5, 5]))
    learnt = model.logits(model.features(state, batch.inputs, given))
    noisy = Noisy(model, noise, seed=3)
    here = noisy.attach(state, ids, torch.tensor([5, 5]), torch.full((2,), 0.4))
    for t in range(batch.inputs.shape[1]):
        logits, here = noisy.step(here, batch.inputs[:, t])
        torch.testing.assert_close(learnt[:, t], logits)


def test_noise_reaches_training_and_none_of_it_nothing(store):
    pairs = np.arange(20)
    clean, zero, some, more = (
        float(updater(store, Recipe(noise=noise)).gradient(pairs, 1))
        for noise in (None, Noise(0.0), Noise(0.5), Noise(0.5, site="embedding"))
    )
    assert clean == zero
    assert len({clean, some, more}) == 3


def test_a_run_stops_when_it_is_done_and_keeps_the_best(tmp_path, store):
    heard = Heard()
    progress, reason = run.train(tmp_path / "run", store.folder, TINY, SHORT, watch=heard)
    assert reason == "3 epochs"
    records = log.read(tmp_path / "run/log.jsonl")
    assert records == heard.records
    valid = [record for record in records if "valid_perplexity" in record]
    assert len(valid) == 3
    best = min(valid, key=lambda record: record["valid_perplexity"])
    assert (progress.best, progress.best_update) == (best["valid_perplexity"], best["update"])
    saved = checkpoint.load(tmp_path / "run")
    assert saved.model.name == f"run/best-{best['update']}"
    assert saved.about["training"]["perplexity"] == progress.best
    folders = sorted(path.name for path in (tmp_path / "run").iterdir())
    assert folders == [
        f"best-{best['update']}",
        f"checkpoint-{progress.update}",
        "log.jsonl",
        "run.json",
    ]


def test_the_rate_falls_along_a_cosine_and_ends_at_nothing(tmp_path, store):
    recipe = Recipe(optimiser="sgd", learning_rate=0.5, batch=200, epochs=3, anneal=True)
    model = tiny(store)
    loop = Loop(tmp_path, store, Updater(model, store.train, recipe, torch.device("cpu")))
    rates = []
    real = loop.updater.update
    loop.updater.update = lambda *given: (
        rates.append(loop.updater.optimiser.param_groups[0]["lr"]),
        real(*given),
    )[1]
    loop.run()
    expected = [0.25 + 0.25 * math.cos(math.pi * (i + 1) / len(rates)) for i in range(len(rates))]
    assert rates == pytest.approx(expected, abs=1e-2)
    assert rates[-1] == pytest.approx(0, abs=1e-9)


def test_patience_ends_a_run_that_gets_worse(tmp_path, store):
    recipe = Recipe(
        optimiser="sgd", learning_rate=1e-12, batch=400, epochs=50, patience=2, decay=0.5
    )
    progress, reason = train(tmp_path / "run", store, recipe)
    assert reason == "2 validations without a new best"
    assert progress.update < 50
    assert progress.rate == 0.5 ** sum(
        not one["best"] for one in log.read(tmp_path / "run/log.jsonl") if "best" in one
    )


def test_the_last_update_is_validated_whatever_the_interval(tmp_path, store):
    progress, reason = train(tmp_path / "run", store, Recipe(batch=120, updates=7, validate=3))
    assert reason == "7 updates"
    assert progress.validated == 7
    updates = [
        record["update"] for record in log.read(tmp_path / "run/log.jsonl") if "valid_nll" in record
    ]
    assert updates == [3, 6, 7]


@pytest.mark.parametrize(
    "options",
    [{"dropout": 0.3}, {"cell": "lstm", "layers": 2}, {"attention": False, "tied": True}],
    ids=["dropout", "lstm", "fixed"],
)
@pytest.mark.parametrize("optimiser", ["adam", "adadelta", "sgd"])
def test_a_run_in_parts_is_the_run_in_one_bit_for_bit(tmp_path, store, options, optimiser):
    recipe = Recipe(
        optimiser=optimiser,
        batch=200,
        epochs=3,
        checkpoint=3,
        learning_rate=0.05,
        decay=0.5,
        noise=Noise(0.2),
    )
    train(tmp_path / "one", store, recipe, **options)
    whole = weights(tmp_path / "one")
    with pytest.raises(Enough):
        run.train(tmp_path / "two", store.folder, TINY | options, recipe, watch=Stopping())
    assert weights(tmp_path / "two") != whole
    run.resume(tmp_path / "two")
    assert weights(tmp_path / "two") == whole
    assert weights(tmp_path / "two", "best") == weights(tmp_path / "one", "best")
    assert _without_time(tmp_path / "two") == _without_time(tmp_path / "one")


class Enough(Exception):
    pass


class Stopping(Watch):
    """Dies at a report of the second epoch."""

    def report(self, record):
        if record["epoch"] > 1:
            raise Enough


def _without_time(folder):
    slow = ("seconds", "tokens_per_second")
    return [
        {name: value for name, value in record.items() if name not in slow}
        for record in log.read(folder / "log.jsonl")
    ]


def test_a_longer_run_goes_on_from_a_finished_one(tmp_path, store):
    train(tmp_path / "one", store, Recipe(batch=200, epochs=4))
    train(tmp_path / "two", store, Recipe(batch=200, epochs=2))
    assert run.resume(tmp_path / "two")[1] == "2 epochs"
    assert run.resume(tmp_path / "two", epochs=4)[1] == "4 epochs"
    assert weights(tmp_path / "two") == weights(tmp_path / "one")


def test_a_run_leaves_the_callers_random_numbers_alone(tmp_path, store):
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    train(tmp_path / "run", store, Recipe(batch=400, epochs=1))
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize("where", ["loss", "gradient"])
def test_a_loss_that_is_no_number_stops_the_run_and_keeps_the_last_good_checkpoint(
    tmp_path, store, monkeypatch, where
):
    real = Updater.update

    def broken(self, pairs, number):
        numbers = real(self, pairs, number)
        if number >= 7:
            with torch.no_grad():
                self.model.logits.bias.fill_(math.nan)
            numbers[0 if where == "loss" else 1] = math.nan
        return numbers

    monkeypatch.setattr(Updater, "update", broken)
    with pytest.raises(
        TrainingError, match=r"at update 7 \(epoch \d\); the last good checkpoint is .*checkpoint-4"
    ):
        train(tmp_path / "run", store, Recipe(batch=200, epochs=9, checkpoint=4, validate=100))
    assert [path.name for path in (tmp_path / "run").glob("checkpoint-*")] == ["checkpoint-4"]
    values, _, _ = checkpoint.load_training(tmp_path / "run/checkpoint-4")
    assert all(bool(tensor.isfinite().all()) for tensor in values.values())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: Recipe(optimiser="adamw"),
            "optimiser must be one of 'adam', 'adadelta', 'sgd', not 'adamw'",
        ),
        (lambda: Recipe(batch=0), "batch must be a whole number of at least 1, not 0"),
        (
            lambda: Recipe(learning_rate=-1.0),
            "learning_rate must be a finite number above 0, not -1.0",
        ),
        (lambda: Recipe(precision="int8"), "precision must be one of 'float32', 'bfloat16'"),
        (lambda: Recipe(noise=Noise([0.1, 0.2])), "training takes one sigma, not one a chain"),
        (lambda: Recipe(noise=Noise(0.1, Adaptive())), "Adaptive follows the output's entropy"),
        (
            lambda: Recipe(noise=Noise(0.1, distribution=Fixed(Orthogonal()))),
            "Orthogonal noise relates the chains",
        ),
        (
            lambda: Recipe(batch=10**400),
            r"batch must be a whole number of at most 9223372036854775807",
        ),
        (
            lambda: Recipe(epochs=1 << 63),
            r"epochs must be a whole number of at most 9223372036854775807",
        ),
        (lambda: Recipe(learning_rate=1e300), r"learning_rate must be at most 3.4e\+38, not"),
        (
            lambda: Recipe(seed=1 << 70),
            r"seed must be a whole number of at most 9223372036854775807",
        ),
        (
            lambda: AttentionModel(5, 5, dropout=1.0),
            "dropout must be a finite number of at least 0 below 1, not 1.0",
        ),
        (
            lambda: AttentionModel(5, 5, initialisation="he"),
            "initialisation must be one of 'paper', 'glorot', 'none'",
        ),
    ],
)
def test_mistakes_in_a_recipe_are_named(make, message):
    with pytest.raises(InvalidInput, match=message):
        make()


def test_mistakes_in_a_run_are_named(tmp_path, store):
    train(tmp_path / "run", store, Recipe(batch=400, epochs=1))
    with pytest.raises(InvalidInput, match="holds a run already; continue it with --resume"):
        train(tmp_path / "run", store)
    with pytest.raises(InvalidInput, match="holds no run to resume"):
        run.resume(tmp_path)
    with pytest.raises(InvalidInput, match="no noise site 'cell'; it offers 'hidden'"):
        train(tmp_path / "other", store, Recipe(noise=Noise(0.1, site="cell")))
    (tmp_path / "run/run.json").write_text("{")
    with pytest.raises(StorageError, match=r"run.json is damaged"):
        run.resume(tmp_path / "run")
    about = json.loads((store.folder / "store.json").read_text())
    del about["splits"]["valid"]
    with pytest.raises(InvalidInput, match="has no validation pairs"):
        Loop(tmp_path, Store(store.folder, about), updater(store))


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("attention", [False, True])
@pytest.mark.parametrize(
    ("cell", "layers", "units"),
    [("gru", 1, 7), ("lstm", 3, 7), ("gru", 2, 257)],
)
def test_parameters_are_counted_by_arithmetic(cell, layers, units, attention, tied):
    options = {"cell": cell, "layers": layers, "units": units, "embedding": 5}
    options |= {"attention": attention, "tied": tied}
    with torch.device("meta"):
        model = AttentionModel(11, 13, **options, initialisation="none")
    assert parameters((11, 13), options) == sum(weight.numel() for weight in model.parameters())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"units": 99999999999}, "a model of units 99,999,999,999, .* cannot be trained in the"),
        ({"units": 10**400}, "units must be a whole number of at most 9223372036854775807"),
        ({"embedding": 99999999999}, "embedding 99,999,999,999, .* cannot be trained"),
        ({"layers": 99999999999}, "layers must be at most 100, not 99999999999"),
        ({"layers": "2"}, "layers must be a whole number of at least 1, not '2'"),
    ],
)
def test_a_giant_model_is_refused_before_anything_is_written(tmp_path, store, options, message):
    text = {"train": [__file__, __file__], "valid": [__file__, __file__]}
    for data in (store.folder, text):
        with pytest.raises(InvalidInput, match=message):
            run.train(tmp_path / "run", data, TINY | options, SHORT)
    assert not (tmp_path / "run").exists()


def test_a_giant_vocabulary_is_refused_before_anything_is_written(tmp_path):
    text = {"train": [__file__, __file__], "valid": [__file__, __file__]}
    text |= {"vocabulary": [99999999999, 300]}
    message = "vocabulary must be at most 10,000,000 tokens, not 99,999,999,999"
    with pytest.raises(InvalidInput, match=message):
        run.train(tmp_path / "run", text, TINY, SHORT)
    with pytest.raises(InvalidInput, match=message):
        prepare(tmp_path / "store", (__file__, __file__), vocabulary=(300, 99999999999))
    assert list(tmp_path.iterdir()) == []


def test_a_mistake_leaves_no_run_behind(tmp_path, store):
    text = {"train": ["nowhere", "nowhere"], "valid": ["nowhere", "nowhere"]}
    for data, options, message in (
        (text, TINY, "cannot read nowhere: there is no such file"),
        (store.folder, TINY | {"units": 0}, "units must be a whole number of at least 1, not 0"),
        (tmp_path, TINY, "is no token store"),
    ):
        with pytest.raises(NpadError, match=message):
            run.train(tmp_path / "run", data, options, SHORT)
    assert not (tmp_path / "run").exists()


def test_one_process_at_a_time_trains_in_a_folder(tmp_path, store):
    train(tmp_path / "run", store, Recipe(batch=400, epochs=1))
    with (
        exclusive_lock(tmp_path / "run/.lock", "here"),
        pytest.raises(InvalidInput, match=r"another process is training in .*run; wait for it"),
    ):
        run.resume(tmp_path / "run", epochs=2)
    run.resume(tmp_path / "run", epochs=2)


def test_the_last_checkpoint_knows_the_last_validation(tmp_path, store):
    """Also where a checkpoint was due at the last update, and where the run is then cut shorter."""
    train(tmp_path / "run", store, Recipe(batch=200, updates=8, validate=3, checkpoint=4))
    for _ in range(2):
        progress, _reason = run.resume(tmp_path / "run")
        saved = json.loads((tmp_path / "run/checkpoint-8/progress.json").read_text())
        assert (saved["validated"], saved["best"]) == (8, progress.best)
        assert [one["update"] for one in log.read(tmp_path / "run/log.jsonl") if "best" in one] == [
            3,
            6,
            8,
        ]


@pytest.mark.parametrize("name", ["progress.json", "training.safetensors", "model.safetensors"])
def test_a_damaged_checkpoint_is_not_gone_on_from(tmp_path, store, name):
    train(tmp_path / "run", store, Recipe(batch=400, epochs=1))
    (path,) = (tmp_path / "run").glob(f"checkpoint-*/{name}")
    path.write_bytes(path.read_bytes().replace(b"1", b"2"))
    with pytest.raises(StorageError, match=f"{name} is damaged: its checksum"):
        run.resume(tmp_path / "run", epochs=2)


def reseal(path, **changes):
    """Change fields of a sealed file, and give it the digest of its new content."""
    plain = json.loads(path.read_text())
    del plain["digest"]
    path.write_text(json.dumps(seal(plain | changes)))


def rewrite_progress(folder, change):
    """Change progress.json, and the checksums of config.json with it."""
    (progress,) = folder.glob("checkpoint-*/progress.json")
    plain = json.loads(progress.read_text())
    change(plain)
    progress.write_text(json.dumps(plain))
    config = progress.with_name("config.json")
    about = json.loads(config.read_text())
    about["sha256"]["progress.json"] = file_digest(progress)
    about["sha256"]["config.json"] = checkpoint.config_digest(about)
    config.write_text(json.dumps(about))


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
    reseal(path, recipe=Recipe(batch=400, updates=2, seed=1).to_json())
    with pytest.raises(StorageError, match=r"the recipe of .*run is not what checkpoint-2"):
        run.resume(copied, updates=3)
    reseal(path, recipe=Recipe(batch=400, updates=2).to_json(), model=TINY | {"dropout": 0.1})
    with pytest.raises(StorageError, match=r"the model of .*run is not what checkpoint-2"):
        run.resume(copied, updates=3)
    reseal(path, model=TINY)
    run.resume(copied, updates=3)
    assert run.Plan.load(copied).recipe.updates == 3


def test_other_data_under_the_same_name_is_refused(tmp_path, copied):
    other = small_store(tmp_path / "other", train=100)
    reseal(copied / "run.json", data=str(other.folder))
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
    reseal(copied / "run.json", data=str(data))
    with pytest.raises(StorageError, match=r"target.tokens is damaged: its checksum"):
        run.resume(copied, updates=3)
    assert run.Plan.load(copied).recipe.updates == 2


def test_a_plan_is_checked_for_types(copied):
    for changes, message in (
        ({"data": 3}, "its data or model is of another type"),
        ({"model": []}, "its data or model is of another type"),
        ({"recipe": []}, "is damaged"),
        ({"recipe": {"batch": 0}}, "batch must be a whole number of at least 1, not 0"),
        ({"recipe": {"noise": 3}}, "is damaged"),
        ({"format": 1}, "is a run of format 1; this npad reads 2; start another run"),
    ):
        content = (copied / "run.json").read_text()
        reseal(copied / "run.json", **changes)
        with pytest.raises(StorageError, match=message):
            run.resume(copied)
        (copied / "run.json").write_text(content)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("update", "2", "update must be a whole number of at least 0, not '2'"),
        ("epoch", -1, "epoch must be a whole number of at least 0, not -1"),
        ("position", 1.0, "position must be a whole number of at least 0, not 1.0"),
        ("worse", True, "worse must be a whole number of at least 0, not True"),
        ("best", math.nan, "progress.json is damaged: NaN is no number"),
        ("best", -1.0, "best must be a number of at least 0, not -1.0"),
        ("rate", None, "rate must be a number of at least 0, not None"),
        ("batches", 0, "batches must be at least 1, not 0"),
        ("position", 10**6, "its position is above its batches"),
        ("validated", 3, "its validated is above its update"),
        ("update", 3, "checkpoint-2 is damaged: it is of update 3"),
        ("more", 3, "it has 'more'"),
        ("plan", [], "it has no plan"),
    ],
)
def test_progress_is_checked_for_types_and_ranges(copied, key, value, message):
    """Also where its checksum is right."""
    rewrite_progress(copied, lambda plain: plain.update({key: value}))
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
    with pytest.raises(StorageError, match=r"has lost best-2; restore it, or start another run"):
        run.resume(copied, updates=3)


def test_only_plain_numbers_name_a_checkpoint(copied):
    """Other digits are digits to Python, too, and no numbers to `int`."""
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
    for line, message in (
        (b"{}", "'update' must be a whole number of at least 1, not None"),
        (b'{"update": true, "perplexity": 3}', "'update' must be a whole number .*, not True"),
        (b'{"update": 3}', "it has no perplexity"),
        (b'{"update": 3, "perplexity": "x"}', "'perplexity' must be a number, not 'x'"),
        (b"[3]", "no JSON object"),
        (b"{", "Expecting property name"),
        (b"\xff", "it is not UTF-8 at byte 0"),
        (b"[" * 10**5, "it is nested too deeply"),
        (b"", "Expecting value"),
    ):
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


def test_a_position_beyond_an_epoch_begins_the_next(tmp_path, store):
    """As of a run that is resumed where the batches are larger."""
    loop = Loop(tmp_path, store, updater(store, Recipe(batch=120, epochs=2)))
    loop.progress.position = 10**6
    first = next(loop._remaining_batches())
    assert (loop.progress.epoch, loop.progress.position) == (1, 0)
    assert np.array_equal(first, loop.updater.batcher.epoch(0, 1)[0])


def test_a_recipe_survives_json():
    recipe = Recipe(
        optimiser="adadelta", updates=3, noise=Noise(0.3, Constant(), StudentT(3), relative=True)
    )
    assert Recipe.from_json(json.loads(json.dumps(recipe.to_json()))) == recipe


TWO = """
import sys
import numpy as np, torch
sys.path.insert(0, "tests")
from npad.training.processes import joined
from npad.training.recipe import Recipe
from npad.training.store import Store
from npad.training.update import Updater
from npad.models.cgru.model import AttentionModel
from runs import TINY

torch.set_num_threads(1)
store = Store.open(sys.argv[1])
with joined(torch.device("cpu")) as processes:
    torch.manual_seed(0)
    source, target = store.subwords
    model = AttentionModel(source.size, target.size, **TINY)
    updater = Updater(model, store.train, Recipe(), torch.device("cpu"), processes)
    sums = []
    for pairs in (np.arange(31), np.arange(1)):  # the second leaves one process without any
        updater.optimiser.zero_grad()
        sums.append(float(updater.gradient(pairs, 1)))
        sums += [float(p.grad.double().square().sum()) for p in model.parameters()]
        sums += [float(p.grad.double().flatten()[::7].sum()) for p in model.parameters()]
    if processes.first:
        print(processes.world, *sums)
"""


def test_two_processes_find_the_gradient_of_one(tmp_path, store):
    """One alone and two together, all at once.

    The two meet at a port that the system chooses, held by this process from the start.
    """
    (tmp_path / "two.py").write_text(TWO)
    command = [sys.executable, str(tmp_path / "two.py"), str(store.folder)]
    meeting = distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    two = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(meeting.port)}
    two |= {"TORCHELASTIC_USE_AGENT_STORE": "True"}
    changes = [{"WORLD_SIZE": "1"}, two | {"RANK": "0"}, two | {"RANK": "1"}]
    started = []
    for change in changes:
        environment = os.environ | {"OMP_NUM_THREADS": "1"} | change
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        started.append(process)
    try:
        printed = [process.communicate(timeout=600) for process in started]
    finally:
        for process in started:
            process.kill()
    assert [process.returncode for process in started] == [0, 0, 0], printed
    numbers = [[float(number) for number in out.split()] for out, _ in printed]
    (world, *single), (worlds, *together), _ = numbers
    assert (world, worlds) == (1, 2)
    np.testing.assert_allclose(together, single, rtol=1e-4, atol=1e-7)


def test_two_processes_train_as_one(tmp_path, store):
    """The command itself: begun, then resumed."""
    recipe = TWO_RUN.split()
    torchrun = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
    ]
    for name, start in (("one", [sys.executable]), ("two", torchrun)):
        for how in (
            ["--data", str(store.folder), *recipe, "--epochs", "1"],
            ["--resume", "--epochs", "2", "--device", "cpu"],
        ):
            command = [*start, "-m", "npad", "train", str(tmp_path / name), *how]
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                env=os.environ | {"OMP_NUM_THREADS": "1"},
                timeout=600,
            )
            assert done.returncode == 0, done.stderr
    one, two = (log.read(tmp_path / name / "log.jsonl") for name in ("one", "two"))
    assert [record["update"] for record in one] == [record["update"] for record in two]
    assert one[-1]["valid_nll"] == pytest.approx(two[-1]["valid_nll"], rel=1e-4)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize(
    "noise", [None, Noise(0.3), Noise(0.3, site="embedding")], ids=["clean", "hidden", "embedding"]
)
@pytest.mark.parametrize("options", [{}, {"cell": "lstm", "layers": 2}], ids=["gru", "lstm"])
def test_a_captured_recurrence_has_the_gradient_of_the_plain_one(store, options, noise):
    gradients = []
    for capture in (True, False):
        one = Updater(
            tiny(store, **options), store.train, Recipe(noise=noise), torch.device("cuda")
        )
        one.features = one.features if capture else None
        for number, pairs in enumerate(
            (np.arange(30), np.arange(30, 60), np.arange(30)), start=1
        ):  # replayed, too
            one.optimiser.zero_grad()
            one.gradient(pairs, number)
        gradients.append(
            torch.cat([parameter.grad.flatten() for parameter in one.model.parameters()])
        )
    torch.testing.assert_close(*gradients, rtol=1e-3, atol=1e-5)
