"""A training run: when it stops, what it keeps, and that it continues bit for bit."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
from dataclasses import replace
from subprocess import PIPE
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import distributed

from npad import InvalidInput, Noise
from npad.errors import TrainingError
from npad.storage import checkpoint
from npad.storage import jsonl as log
from npad.storage.atomic import exclusive_lock
from npad.training import loop as training_loop
from npad.training import run
from npad.training.loop import Loop, Watch, held_signals, load_checkpoint
from npad.training.recipe import Recipe
from npad.training.update import ModelUpdater, Replicas
from npad.training.validation import Perplexity
from runs import SHORT, TINY, Enough, Stopping, log_without_time, train, updater, weights


def loop_of(folder, store, recipe):
    """The loop of a tiny model."""
    trained = updater(store, recipe)
    return Loop(folder, trained, Perplexity(trained.model, store, recipe, trained.device))


class Heard(Watch):
    def __init__(self):
        self.records, self.epochs = [], []

    def epoch(self, progress, batches, recipe):
        self.epochs.append((progress.epoch, batches, recipe))

    def report(self, record):
        self.records.append(record)


def test_a_run_stops_when_it_is_done_and_keeps_the_best(tmp_path, store):
    heard = Heard()
    progress, reason = run.train(tmp_path / "run", store.folder, TINY, SHORT, watch=heard)
    assert reason == "3 epochs"
    records = log.read(tmp_path / "run/log.jsonl")
    assert records == heard.records
    assert heard.epochs == [(epoch, progress.batches, SHORT) for epoch in range(3)]
    valid = [record for record in records if "valid_perplexity" in record]
    assert len(valid) == 3
    best = min(valid, key=lambda record: record["valid_perplexity"])
    assert (progress.best, progress.best_update) == (best["valid_perplexity"], best["update"])
    saved = checkpoint.load(tmp_path / "run")
    assert saved.model.name == f"run/best-{best['update']}"
    assert saved.about["training"]["perplexity"] == progress.best
    folders = sorted(path.name for path in (tmp_path / "run").iterdir())
    checkpoints = [f"best-{best['update']}", f"checkpoint-{progress.update}"]
    assert folders == [*checkpoints, "log.jsonl", "run.json"]


def test_the_rate_falls_along_a_cosine_and_ends_at_nothing(tmp_path, store):
    recipe = Recipe(optimiser="sgd", learning_rate=0.5, batch=200, epochs=3, anneal=True)
    loop = loop_of(tmp_path, store, recipe)
    rates = []
    real = loop.updater.update
    loop.updater.update = lambda *given: (
        rates.append(loop.updater.optimiser.param_groups[0]["lr"]),
        real(*given),
    )[1]
    loop.run()
    sizes = [len(loop.updater.batcher.epoch(recipe.seed, epoch)) for epoch in range(3)]
    done = [i + (k + 1) / n for i, n in enumerate(sizes) for k in range(n)]
    assert rates == pytest.approx([0.25 + 0.25 * math.cos(math.pi * x / 3) for x in done])
    assert rates[-1] == pytest.approx(0, abs=1e-9)


def test_patience_ends_a_run_that_gets_worse(tmp_path, store):
    recipe = Recipe(
        optimiser="sgd", learning_rate=1e-12, batch=400, epochs=50, patience=2, decay=0.5
    )
    progress, reason = train(tmp_path / "run", store, recipe)
    assert reason == "2 validations without a new best"
    assert progress.update < 50
    validations = [record for record in log.read(tmp_path / "run/log.jsonl") if "best" in record]
    assert progress.rate == 0.5 ** sum(not record["best"] for record in validations)


def test_the_last_update_is_validated_whatever_the_interval(tmp_path, store):
    progress, reason = train(tmp_path / "run", store, Recipe(batch=120, updates=7, validate=3))
    assert reason == "7 updates"
    assert progress.validated == 7
    assert validated_updates(tmp_path / "run") == [3, 6, 7]


def validated_updates(folder):
    return [record["update"] for record in log.read(folder / "log.jsonl") if "best" in record]


@pytest.mark.parametrize(
    ("optimiser", "options"),
    [
        ("adam", {"dropout": 0.3}),
        ("adadelta", {"cell": "lstm", "layers": 2}),
        ("sgd", {"attention": False, "tied": True}),
    ],
    ids=["adam-dropout", "adadelta-lstm", "sgd-fixed"],
)
def test_a_run_in_parts_is_the_run_in_one_bit_for_bit(tmp_path, store, options, optimiser):
    recipe = Recipe(optimiser=optimiser, batch=200, epochs=3, checkpoint=3, noise=Noise(0.2))
    recipe = replace(recipe, learning_rate=0.05, decay=0.5)
    train(tmp_path / "one", store, recipe, **options)
    whole = weights(tmp_path / "one")
    with pytest.raises(Enough):
        run.train(tmp_path / "two", store.folder, TINY | options, recipe, watch=Stopping())
    assert weights(tmp_path / "two") != whole
    run.resume(tmp_path / "two")
    assert weights(tmp_path / "two") == whole
    assert weights(tmp_path / "two", "best") == weights(tmp_path / "one", "best")
    assert log_without_time(tmp_path / "two") == log_without_time(tmp_path / "one")


def test_a_longer_run_goes_on_from_a_finished_one(tmp_path, store):
    train(tmp_path / "one", store, Recipe(batch=200, epochs=4))
    train(tmp_path / "two", store, Recipe(batch=200, epochs=2))
    (tmp_path / "two/.checkpoint-99.part").mkdir()  # as a kill leaves it
    assert run.resume(tmp_path / "two")[1] == "2 epochs"
    assert run.resume(tmp_path / "two", epochs=4)[1] == "4 epochs"
    assert weights(tmp_path / "two") == weights(tmp_path / "one")
    assert not (tmp_path / "two/.checkpoint-99.part").exists()


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
    real = ModelUpdater.update

    def broken(self, pairs, number):
        numbers = real(self, pairs, number)
        if number >= 7:
            with torch.no_grad():
                self.model.logits.bias.fill_(math.nan)
            numbers[0 if where == "loss" else 1] = math.nan
        return numbers

    monkeypatch.setattr(ModelUpdater, "update", broken)
    with pytest.raises(
        TrainingError, match=r"at update 7 \(epoch \d\); the last good checkpoint is .*checkpoint-4"
    ):
        train(tmp_path / "run", store, Recipe(batch=200, epochs=9, checkpoint=4, validate=100))
    assert [path.name for path in (tmp_path / "run").glob("checkpoint-*")] == ["checkpoint-4"]
    _, values, _ = load_checkpoint(tmp_path / "run/checkpoint-4")
    assert all(bool(tensor.isfinite().all()) for tensor in values.values())


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
        saved = json.loads((tmp_path / "run/checkpoint-8/progress.json").read_text())["progress"]
        assert (saved["validated"], saved["best"]) == (8, progress.best)
        assert 0 <= saved["seconds"] < 600
        assert validated_updates(tmp_path / "run") == [3, 6, 8]


def test_a_run_may_have_to_beat_its_start(tmp_path, store):
    """As an actor's run, which has to beat its decoder without the actor."""
    loop, heard = loop_of(tmp_path, store, Recipe(batch=200, updates=1)), Heard()
    loop.watch, measures = heard, {"valid_perplexity": 1.5}
    loop.validation.start = lambda: measures
    real, found = loop.updater.update, []
    loop.updater.update = lambda *given: (
        found.append(checkpoint.newest(tmp_path, "checkpoint").name),
        real(*given),
    )[1]
    loop.run()
    assert found == ["checkpoint-0"]
    start, _, last = heard.records
    assert start == {"update": 0, "epoch": 0.0, "seconds": start["seconds"]} | measures | {
        "best": False
    }
    assert (last["best"], loop.progress.best, loop.progress.worse) == (False, 1.5, 1)
    assert (loop.progress.initial, loop.best()) == (1.5, None)
    assert (loop.progress.nats, loop.progress.tokens) == (0, 0)  # since the validation
    resumed = loop_of(tmp_path, store, Recipe(batch=200, updates=1))
    resumed.validation.start = None  # it is not measured again
    assert resumed.run() == "1 update"


def test_a_run_that_is_cut_shorter_than_it_is_validates_what_it_has(tmp_path, store):
    recipe = Recipe(batch=200, updates=9, validate=100, checkpoint=4)
    loop = loop_of(tmp_path, store, recipe)
    real = loop.updater.update
    loop.updater.update = lambda pairs, number: real(pairs, number) if number < 7 else 1 / 0
    with pytest.raises(ZeroDivisionError):
        loop.run()
    shorter = loop_of(tmp_path, store, replace(recipe, updates=3))
    assert shorter.run() == "3 updates"
    assert (shorter.progress.validated, validated_updates(tmp_path)) == (4, [4])


def test_a_position_beyond_an_epoch_begins_the_next(tmp_path, store):
    """As of a run that is resumed where the batches are larger."""
    loop = loop_of(tmp_path, store, Recipe(batch=120, epochs=2))
    loop.progress.position = 10**6
    first = next(loop._remaining_batches())
    assert (loop.progress.epoch, loop.progress.position) == (1, 0)
    assert np.array_equal(first, loop.updater.batcher.epoch(0, 1)[0])


def test_a_report_has_the_means_of_its_updates_and_the_time_of_all_sessions(
    tmp_path, store, monkeypatch
):
    clock = SimpleNamespace(monotonic=lambda: 100.0)
    monkeypatch.setattr(training_loop, "time", clock)
    loop = loop_of(tmp_path, store, SHORT)
    loop.progress.update, loop.progress.batches, loop.progress.position = 2, 9, 2
    three, two = np.array([0, 3, 5]), np.array([7, 8])
    tokens = int(store.train.target.lengths[[0, 3, 5, 7, 8]].sum()) + 5  # with the end tokens
    for now, passed in ((102.0, 2), (105.0, 3)):
        clock.monotonic = lambda now=now: now
        loop.pending = [(torch.tensor([6.0, 1.0]), three), (torch.tensor([4.0, 2.0]), two)]
        loop.report()
        loop.report()  # of nothing
        record = log.read(tmp_path / "log.jsonl")[-1]
        assert record == {
            "update": 2,
            "epoch": 0.222,
            "seconds": now - 100,
            "nll": 2.0,
            "perplexity": pytest.approx(math.exp(10 / tokens)),
            "gradient_norm": 1.5,
            "tokens_per_second": round(tokens / passed),
        }
    assert (loop.progress.nats, loop.progress.tokens, loop.pending) == (20.0, 2 * tokens, [])
    loop.save()
    clock.monotonic = lambda: 300.0
    resumed = loop_of(tmp_path, store, SHORT)
    clock.monotonic = lambda: 400.0  # after the data was read
    resumed.resume()
    clock.monotonic = lambda: 410.0
    resumed.pending = [(torch.tensor([6.0, 1.0]), three)]
    resumed.report()
    record = log.read(tmp_path / "log.jsonl")[-1]
    tokens = int(store.train.target.lengths[three].sum()) + 3
    assert (record["seconds"], record["tokens_per_second"]) == (15.0, round(tokens / 10))


@pytest.mark.parametrize(
    ("world", "received", "others", "pending", "expected"),
    [
        *[(1, 1, 0, 1, True), (1, 0, 0, 0, False), (2, 0, 1, 0, True), (2, 1, 0, 0, True)],
        *[(2, 0, 0, 0, False), (2, 1, 1, 1, False)],
    ],
)
def test_several_processes_stop_together_after_a_report(
    tmp_path, store, world, received, others, pending, expected
):
    class Others(Replicas):
        def add(self, tensor):
            return tensor + others

    loop = loop_of(tmp_path, store, SHORT)
    loop.updater.replicas, loop.pending = Others(0, world), [None] * pending
    assert loop._is_interrupted([signal.SIGINT] * received) is expected


TRAIN = """
import os, signal, sys
import torch
from npad.training import loop as training_loop
from npad.training import run
from npad.training.loop import Watch
from npad.training.recipe import Recipe

class Interrupting(Watch):  # one of the processes alone, once
    def report(self, record):
        if not heard:
            heard.append(record)
            signal.raise_signal(signal.SIGINT)

heard = []
signal.signal(signal.SIGINT, signal.default_int_handler)

torch.set_num_threads(1)
folder, store, port, resumed_port = sys.argv[1:]
options = {"units": 8, "embedding": 6, "initialisation": "glorot"}
os.environ["MASTER_PORT"] = port
recipe = Recipe(batch=300, epochs=2, optimiser="sgd")
try:
    run.train(folder, store, options, recipe, watch=Interrupting())
except KeyboardInterrupt:
    os.environ["MASTER_PORT"] = resumed_port
    run.resume(folder)
else:
    sys.exit("it was not interrupted")
"""


def test_two_processes_train_as_one(tmp_path, store):
    """Begun, interrupted, resumed. They meet at ports of the system's choice, held at first."""
    meetings = [
        distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        for _ in range(2)
    ]
    ports = [str(meeting.port) for meeting in meetings]
    two = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    two |= {"TORCHELASTIC_USE_AGENT_STORE": "True", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", TRAIN, str(tmp_path / "two"), str(store.folder), *ports]
    started = [
        subprocess.Popen(command, env=os.environ | two | {"RANK": str(rank)}, stderr=PIPE)
        for rank in range(2)
    ]
    recipe = Recipe(batch=300, epochs=2, optimiser="sgd")
    train(tmp_path / "one", store, recipe)
    try:
        errors = [process.communicate(timeout=60)[1] for process in started]
    finally:
        for process in started:
            process.kill()
    assert [process.returncode for process in started] == [0, 0], errors
    alone, together = (
        load_file(next((tmp_path / name).glob("best-*/model.safetensors")))
        for name in ("one", "two")
    )
    for name, weight in alone.items():
        torch.testing.assert_close(together[name], weight, rtol=1e-4, atol=1e-6)
    one, two = (log.read(tmp_path / name / "log.jsonl") for name in ("one", "two"))
    assert [record["update"] for record in one] == [record["update"] for record in two]


class Signalling(Watch):
    """Sends this process a signal at the first report, in the middle of the first epoch."""

    def __init__(self, number):
        self.number = number

    def report(self, record):
        if self.number is not None:
            signal.raise_signal(self.number)
            self.number = None


@pytest.fixture
def handlers():
    """Python's own handlers of signals, whatever ran this process."""
    usual = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
    kept = {number: signal.signal(number, handler) for number, handler in usual.items()}
    yield
    for number, handler in kept.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_writes_a_checkpoint_and_goes_on_to_the_same_weights(
    tmp_path, store, handlers, number
):
    """Long before the first checkpoint is due."""
    recipe = replace(SHORT, checkpoint=10_000)
    run.train(tmp_path / "whole", store.folder, TINY, recipe)
    before = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)]
    watch = Signalling(number)
    with pytest.raises(KeyboardInterrupt) as caught:
        run.train(tmp_path / "run", store.folder, TINY, recipe, watch=watch)
    assert [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)] == before
    assert caught.value.args == (number,)
    last = checkpoint.newest(tmp_path / "run", "checkpoint")
    content, _, _ = load_checkpoint(last)
    progress = content["progress"]
    assert 0 < progress["update"] == progress["position"] < progress["batches"]
    assert caught.value.__notes__ == [f"checkpoint-{progress['update']} is written"]
    run.resume(tmp_path / "run")
    assert weights(tmp_path / "run") == weights(tmp_path / "whole")
    assert weights(tmp_path / "run", "best") == weights(tmp_path / "whole", "best")


def test_a_second_interrupt_acts_at_once_and_other_handlers_are_left_alone(handlers):
    with held_signals() as received:
        signal.raise_signal(signal.SIGINT)
        assert received == [signal.SIGINT]
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    handled = []
    signal.signal(signal.SIGINT, lambda *_: handled.append(True))
    with held_signals() as received:
        signal.raise_signal(signal.SIGINT)
    assert (handled, received) == ([True], [])
