"""Training an actor: it learns what the beam found, and survives a kill."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import pytest
import torch

import npad
from attention_cases import build
from npad import Beam, Greedy, Steered, decode
from npad.models.actors import Actor
from npad.storage import checkpoint
from npad.storage.actors import install_actor, load_actor, save_actor
from npad.training.actor_loop import ActorLoop, Validation, dropping
from npad.training.actors import ACTOR_RECIPE, ActorPlan, resume_actor, train_actor
from npad.training.batches import Batcher, Buckets
from npad.training.likelihood import nll
from npad.training.recipe import Recipe
from npad.training.targets import pairs_of
from npad.training.teacher import Teacher, decode_sources
from runs import npad as command
from runs import printed_here, refused_here

SHORT = Recipe(batch=80, epochs=3, patience=4, anneal=True, learning_rate=0.01, checkpoint=4)


def random_sources(count, seed=0):
    random = np.random.default_rng(seed)
    return [random.integers(1, 12, size=random.integers(1, 7)).tolist() for _ in range(count)]


def ending():
    """A model that ends most outputs, of six tokens on average."""
    model = build(torch.float32, scale=1.2)
    with torch.no_grad():
        model.logits.bias[model.special.eos] += 1
    return model


@pytest.fixture(scope="module")
def taught(tmp_path_factory):
    """A small model with the sources that a beam has decoded."""
    model, sources = ending(), random_sources(80)
    parts = decode_sources(tmp_path_factory.mktemp("parts"), model, "x", sources, Teacher(6))
    return model, sources, parts


def loop_in(folder, taught, recipe=SHORT, sites=("hidden", "output"), **more):
    model, sources, parts = taught
    torch.manual_seed(0)
    actor = Actor.for_model(model, sites, units=16, kind="gru", inputs=["state", "embedding"])
    pairs, validation = pairs_of(parts, sources), Validation(sources, max_length=24)
    return ActorLoop(folder, model, actor, pairs, validation, recipe, "sum", **more)


def test_an_actor_learns_to_find_what_the_beam_finds(tmp_path, taught):
    model, sources, _ = taught
    recipe = replace(SHORT, epochs=40, patience=40)
    loop = loop_in(tmp_path, taught, recipe)
    before = {name: x.clone() for name, x in model.named_parameters()}
    assert loop.run() == "40 epochs"
    assert all(torch.equal(before[name], x) for name, x in model.named_parameters())
    actor = load_actor(tmp_path / "best", "sum")

    def mean(model, decoder):
        found = decode(model, sources, decoder, 24)
        return sum(hypotheses[0].log_prob for hypotheses in found) / len(sources)

    greedy, beam, steered = (
        mean(model, Greedy()),
        mean(model, Beam(6)),
        mean(Steered(model, actor), Greedy()),
    )
    assert greedy + 0.3 * (beam - greedy) < steered
    assert loop.progress.greedy == pytest.approx(greedy, abs=1e-4)
    assert loop.progress.best == pytest.approx(steered, abs=0.02)  # stored in float16


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_training_that_is_stopped_anywhere_goes_on_to_the_same_actor(tmp_path, taught, dropout):
    whole = loop_in(tmp_path / "whole", taught, dropout=dropout)
    assert whole.run() == "3 epochs"
    for stop_at in (1, 5, 12):

        class Stop(Exception):
            pass

        class Killer(npad.training.actor_loop.ActorWatch):
            def training(self, update, batch, batches, stop_at=stop_at):
                if update == stop_at:
                    raise Stop

        folder = tmp_path / f"stopped-{stop_at}"
        with pytest.raises(Stop):
            loop_in(folder, taught, watch=Killer(), dropout=dropout).run()
        again = loop_in(folder, taught, dropout=dropout)
        again.run()
        for name, weight in whole.actor.state_dict().items():
            assert torch.equal(weight, again.actor.state_dict()[name]), (stop_at, name)
        records = [
            [json.loads(line) for line in (place / "log.jsonl").read_text().splitlines()]
            for place in (tmp_path / "whole", folder)
        ]
        for record in records[0] + records[1]:
            record.pop("seconds")
        assert records[0] == records[1]


def test_the_model_drops_units_while_the_actor_learns_and_at_no_other_time(tmp_path, taught):
    model, sources, _ = taught
    loop = loop_in(tmp_path, taught, dropout=0.5)
    batch = loop.batcher.batch(loop.batcher.epoch(0, 0)[0])

    def losses():
        return [float(nll(model, batch).detach()) for _ in range(2)]

    clean = losses()
    assert clean[0] == clean[1]
    with dropping(model, 0.5):
        first, second = losses()
    assert first != second
    assert clean[0] not in (first, second)
    with dropping(model, 0.0):
        assert losses() == clean
    assert losses() == clean
    assert model.drop.p == 0.0
    loop.run()
    assert not model.drop.training
    assert loop.progress.greedy == pytest.approx(
        sum(best.log_prob for best, *_ in decode(model, sources, Greedy(), 24)) / len(sources),
        abs=1e-4,
    )


def test_an_actor_that_is_never_better_is_not_kept(tmp_path, taught):
    loop = loop_in(tmp_path, taught, replace(SHORT, patience=3))
    loop.validation = replace(loop.validation, measure=lambda outputs: 0.0)
    assert loop.run() == "3 validations without a new best"
    assert not (tmp_path / "best").exists()
    assert loop.progress.best_update == 0


def test_buckets_hold_every_pair_once_and_have_few_shapes(taught):
    model, sources, parts = taught
    pairs = pairs_of(parts, sources)
    buckets = Buckets(pairs, model.special, 200)
    for number in range(2):
        batches = buckets.epoch(0, number)
        assert sorted(np.concatenate(batches).tolist()) == list(range(len(pairs)))
        shapes = {}
        for index in batches:
            batch = buckets.batch(index)
            shapes.setdefault(batch.inputs.shape[1], set()).add(
                (batch.source.shape, batch.inputs.shape)
            )
            plain = Batcher(pairs, model.special, 200).batch(index)
            assert batch.outputs.tolist() == plain.outputs.tolist()
        assert all(len(seen) == 1 for seen in shapes.values())
    assert [b.tolist() for b in buckets.epoch(0, 0)] != [b.tolist() for b in buckets.epoch(0, 1)]


@pytest.fixture
def model_copy(tmp_path, trained):
    """A model of its own, to put an actor beside."""
    shutil.copytree(checkpoint.resolve(trained), tmp_path / "model")
    return tmp_path / "model"


def arguments(folder, model, corpus, *more):
    (data, valid) = [corpus / f"{split}.src" for split in ("train", "valid")]
    files = [
        "--data",
        data,
        "--valid",
        valid,
        corpus / "valid.tgt",
        "--references",
        corpus / "train.tgt",
    ]
    sizes = ["--width", 3, "--units", 8, "--epochs", 1, "--device", "cpu"]
    return ["train-actor", folder, "-m", model, *files, *sizes, *more]


@pytest.fixture
def small_corpus(tmp_path, corpus):
    folder = tmp_path / "text"
    folder.mkdir()
    for name in ("train.src", "train.tgt", "valid.src", "valid.tgt"):
        lines = (corpus / name).read_text().splitlines(keepends=True)
        (folder / name).write_text("".join(lines[:60]))
    return folder


def test_the_command_trains_and_installs_an_actor(
    tmp_path, model_copy, small_corpus, capsys, monkeypatch
):
    def command(*words):
        return printed_here(capsys, monkeypatch, *words)

    criterion = ["--criterion", "log-prob", "--target", "beam", "--target", "chrf"]
    run = tmp_path / "run"
    shown = command(*arguments(run, model_copy, small_corpus, *criterion))
    assert "without an actor  criterion" in shown
    assert "stopped after 1 epochs" in shown
    if not (run / "best").exists():  # the small model is hard to improve on
        actor = Actor.for_model(npad.load(model_copy).model)
        save_actor(
            run / "best",
            actor,
            checkpoint.read_config(model_copy)["sha256"]["model.safetensors"],
            {},
        )
    install_actor(run / "best", model_copy)
    translated = command("translate", "-m", model_copy, "-d", "steered", "babe bibo")
    assert translated.strip()
    assert "feed-forward" in command("info", model_copy)
    assert json.loads(command("info", model_copy, "--json"))["actor"]["actor"]["units"] > 0
    again = command("train-actor", run, "--resume", "--device", "cpu")
    assert "stopped after 1 epochs" in again
    line = refused_here(capsys, monkeypatch, *arguments(run, model_copy, small_corpus))
    assert "holds a run already; continue it with --resume" in line
    shipped = arguments(tmp_path / "other", "en-de", small_corpus, "--install")
    assert "en-de is part of npad" in refused_here(capsys, monkeypatch, *shipped)
    assert not (tmp_path / "other").exists()


def test_a_killed_run_goes_on_to_the_same_actor(
    tmp_path, model_copy, small_corpus, capsys, monkeypatch
):
    more = ["--criterion", "log-prob", "--batch", 200, "--epochs", 2]
    command(*arguments(tmp_path / "whole", model_copy, small_corpus, *more))
    for sign in ("candidates/part-*", "checkpoint-0"):
        run = tmp_path / f"killed-{sign[:4]}"
        line = [
            sys.executable,
            "-m",
            "npad",
            *map(str, arguments(run, model_copy, small_corpus, *more)),
        ]
        process = subprocess.Popen(
            line, stdout=subprocess.DEVNULL, env=os.environ | {"OMP_NUM_THREADS": "1"}
        )
        while process.poll() is None and not list(run.glob(sign)):
            time.sleep(0.005)
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL, "it was done before it could be killed"
        printed_here(capsys, monkeypatch, "train-actor", run, "--resume", "--device", "cpu")
        files = [next(place.glob("checkpoint-*")) for place in (run, tmp_path / "whole")]
        assert files[0].name == files[1].name
        weights = [(file / "actor.safetensors").read_bytes() for file in files]
        assert weights[0] == weights[1]


def test_mistakes_are_one_line(tmp_path, model_copy, small_corpus, capsys, monkeypatch):
    def line(*more, model=model_copy):
        words = arguments(tmp_path / "run", model, small_corpus, *more)
        return refused_here(capsys, monkeypatch, *words)

    assert "criterion must be" in line("--criterion", "ter")
    assert "has no noise site 'nowhere'" in line("--sites", "nowhere")
    assert "kind must be" in line("--kind", "deep")
    assert "target must be" in line("--target", "worst")
    assert "references must be one file per file" in line("--data", small_corpus / "valid.src")
    assert "toy cannot be steered by an actor" in line(model="toy")
    assert not (tmp_path / "run").exists()
    words = [
        "train-actor",
        tmp_path / "run",
        "-m",
        model_copy,
        "--data",
        small_corpus / "train.src",
    ]
    valid = ["--valid", small_corpus / "valid.src", small_corpus / "valid.tgt"]
    assert "give --references" in refused_here(
        capsys, monkeypatch, *words, *valid, "--target", "bleu"
    )
    assert "--valid SOURCE TARGET" in refused_here(capsys, monkeypatch, *words)
    assert "no such file" in refused_here(
        capsys, monkeypatch, *words, "--valid", "no.src", small_corpus / "valid.tgt"
    )
    assert "no run to resume" in refused_here(
        capsys, monkeypatch, "train-actor", tmp_path / "run", "--resume"
    )
    assert "has no actor; train one" in refused_here(
        capsys, monkeypatch, "translate", "-m", model_copy, "-d", "steered", "babe"
    )


def test_the_functions_are_importable_without_the_command_line(tmp_path, model_copy, small_corpus):
    plan = ActorPlan(
        str(model_copy),
        (str(small_corpus / "train.src"),),
        (str(small_corpus / "valid.src"), str(small_corpus / "valid.tgt")),
        width=2,
        criterion="log-prob",
        actor={"units": 4},
        recipe=replace(ACTOR_RECIPE, epochs=1),
    )
    progress, reason = train_actor(tmp_path / "run", plan)
    assert reason == "1 epochs"
    assert ActorPlan.load(tmp_path / "run") == plan
    assert resume_actor(tmp_path / "run")[0].update == progress.update
