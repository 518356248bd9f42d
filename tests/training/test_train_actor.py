"""Training an actor: it learns what the beam found, and survives a kill."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

from npad import Beam, Greedy, Steered, decode
from npad.models.actors import Actor
from npad.storage import checkpoint
from npad.storage.actors import load_actor, model_checksum, save_actor
from npad.training.actors import ACTOR_RECIPE, ActorPlan, resume_actor, train_actor
from npad.training.batches import nll
from npad.training.loop import Loop, Watch
from npad.training.recipe import Recipe
from npad.training.teacher import Teacher, decode_sources, pairs_of
from npad.training.update import ActorUpdater, dropping
from npad.training.validation import GreedySearch, Steering
from runs import Enough, kill_when, log_without_time, reversal, text_files, weights
from steered_cases import ending, random_sources

SHORT = Recipe(batch=80, epochs=3, patience=4, anneal=True, learning_rate=0.01, checkpoint=4)


@pytest.fixture(scope="module")
def taught(tmp_path_factory):
    """A small model with the sources that a beam has decoded."""
    model, sources = ending(), random_sources(80)
    parts = decode_sources(tmp_path_factory.mktemp("parts"), model, "x", sources, Teacher(6))
    return model, sources, parts


def loop_in(folder, taught, recipe=SHORT, dropout=0.0, watch=None, measure=None):
    model, sources, parts = taught
    torch.manual_seed(0)
    options = {"units": 16, "inputs": ["state", "embedding"]}
    actor = Actor.for_model(model, ("hidden", "output"), **options)
    updater = ActorUpdater(model, actor, pairs_of(parts, sources), recipe, dropout)
    search = GreedySearch(sources, measure, max_length=24)
    return Loop(folder, updater, Steering(model, actor, search, "sum"), {}, watch or Watch())


def test_an_actor_brings_greedy_search_nearer_to_the_beam(tmp_path, taught):
    model, sources, _ = taught
    loop = loop_in(tmp_path, taught, replace(SHORT, epochs=40, patience=40))
    before = {name: x.clone() for name, x in model.named_parameters()}
    assert loop.run() == "40 epochs"
    assert all(torch.equal(before[name], x) for name, x in model.named_parameters())
    actor = load_actor(loop.best(), "sum")

    def mean(model, decoder):
        outputs = decode(model, sources, decoder, 24)
        return sum(hypotheses[0].log_prob for hypotheses in outputs) / len(sources)

    greedy, beam = mean(model, Greedy()), mean(model, Beam(6))
    steered = mean(Steered(model, actor), Greedy())
    assert greedy + 0.3 * (beam - greedy) < steered
    assert loop.progress.initial == pytest.approx(greedy, abs=1e-4)
    assert loop.progress.best == pytest.approx(steered, abs=0.02)  # stored in float16


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("last_report", [5, 9])
def test_an_interrupted_actor_resumes_to_the_same_weights(tmp_path, taught, last_report, dropout):
    class Interrupting(Watch):
        def report(self, record):
            if record["update"] >= last_report:
                raise Enough

    loop_in(tmp_path / "whole", taught, dropout=dropout).run()
    with pytest.raises(Enough):
        loop_in(tmp_path / "parts", taught, dropout=dropout, watch=Interrupting()).run()
    loop_in(tmp_path / "parts", taught, dropout=dropout).run()
    assert weights(tmp_path / "parts") == weights(tmp_path / "whole")
    assert weights(tmp_path / "parts", "best") == weights(tmp_path / "whole", "best")
    assert log_without_time(tmp_path / "parts") == log_without_time(tmp_path / "whole")


def test_a_loop_that_is_out_of_time_validates_and_can_be_resumed(tmp_path, taught):
    loop = loop_in(tmp_path, taught)
    loop.stop = lambda: loop.progress.update >= 6
    assert loop.run() == "out of time"
    assert loop.progress.validated == 6
    assert loop_in(tmp_path, taught).run() == "3 epochs"


def test_the_model_drops_units_only_while_the_actor_learns(tmp_path, taught):
    model = taught[0]
    loop = loop_in(tmp_path, taught, dropout=0.5)
    batch = loop.updater.batcher.batch(loop.updater.batcher.epoch(0, 0)[0])

    def losses():
        return [float(nll(model, batch).detach()) for _ in range(2)]

    clean = losses()
    assert clean[0] == clean[1]
    with dropping(model, 0.5):
        first, second = losses()
    assert len({first, second, clean[0]}) == 3
    with dropping(model, 0.0):
        assert losses() == clean
    assert losses() == clean
    assert model.drop.p == 0.0
    loop.run()
    assert not model.drop.training


def test_an_actor_that_is_never_better_is_not_kept(tmp_path, taught):
    loop = loop_in(tmp_path, taught, replace(SHORT, patience=3), measure=lambda outputs: 0.0)
    assert loop.run() == "3 validations without a new best"
    assert loop.best() is None
    assert loop.progress.best_update == 0


@pytest.fixture
def small_corpus(tmp_path):
    return reversal(tmp_path / "text", train=60, valid=60)


def arguments(folder, model, corpus, *more):
    source, references, *valid = text_files(corpus)
    files = ["--data", source, "--references", references, "--valid", *valid]
    sizes = ["--width", 3, "--units", 8, "--epochs", 1, "--device", "cpu"]
    return ["train-actor", folder, "-m", model, *files, *sizes, *more]


def test_the_command_trains_and_installs_an_actor(
    tmp_path, model_copy, small_corpus, printed_here, refused_here
):
    def command(*words):
        return printed_here(*words)

    run = tmp_path / "run"
    criterion = ["--criterion", "log-prob", "--target", "beam", "--target", "chrf"]
    assert "Stopped after 1 epoch" in command(*arguments(run, model_copy, small_corpus, *criterion))
    resumed = command("train-actor", run, "--resume", "--install", "--device", "cpu")
    assert "Stopped after 1 epoch" in resumed
    if checkpoint.newest(run, "best") is None:  # the small model is hard to improve on
        actor = Actor.for_model(checkpoint.load(model_copy).model)
        save_actor(model_copy, actor, model_checksum(model_copy), {})
    assert command("translate", "-m", model_copy, "-d", "steered", "babe bibo").strip()
    assert "feed-forward" in command("info", model_copy)
    assert json.loads(command("info", model_copy, "--json"))["actor"]["actor"]["units"] > 0
    line = refused_here(*arguments(run, model_copy, small_corpus))
    assert "holds a run already; continue it with --resume" in line
    shipped = arguments(tmp_path / "other", "en-de", small_corpus, "--install")
    assert "en-de is part of npad" in refused_here(*shipped)
    assert not (tmp_path / "other").exists()


def test_a_killed_actor_resumes_from_another_directory_to_the_same_weights(
    tmp_path, model_copy, small_corpus, printed_here, monkeypatch
):
    """Begun with relative paths, as they are typed, and killed once candidates are decoded."""
    monkeypatch.chdir(tmp_path)
    relative = [path.relative_to(tmp_path) for path in (model_copy, small_corpus)]
    more = ["--criterion", "log-prob", "--batch", 200, "--epochs", 2]
    printed_here(*arguments("whole", *relative, *more))
    run = tmp_path / "killed"
    words = arguments("killed", *relative, *more)
    kill_when(lambda: list(run.glob("candidates/part-*")), *words)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    printed_here("train-actor", run, "--resume", "--device", "cpu")
    assert weights(run) == weights(tmp_path / "whole")


def test_missing_inputs_are_named(model_copy, small_corpus, refused_here, monkeypatch):
    monkeypatch.chdir(small_corpus)
    train = f"train-actor run -m {model_copy} --data train.src"
    for command, message in (
        (f"{train} --valid valid.src valid.tgt --target bleu", "give --references"),
        (train, "--valid SOURCE TARGET"),
        ("train-actor run --resume", "no run to resume"),
        (f"translate -m {model_copy} -d steered x", "has no actor; train one"),
    ):
        assert message in refused_here(*command.split())


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--criterion", "ter"], "criterion must be"),
        (["--sites", "nowhere"], "has no noise site 'nowhere'"),
        (["--target", "worst"], "target must be"),
        (["--data", "valid.src"], "references must be one file per file"),
        (["-m", "toy"], "toy cannot be steered by an actor"),
        (["--valid", "no.src", "valid.tgt"], "no such file"),
    ],
)
def test_a_mistake_is_one_line_and_leaves_no_run(
    tmp_path, model_copy, small_corpus, refused_here, monkeypatch, more, message
):
    monkeypatch.chdir(small_corpus)
    words = arguments(tmp_path / "run", model_copy, small_corpus, *more)
    assert message in refused_here(*words)
    assert not (tmp_path / "run").exists()


def test_actors_are_trained_from_python_too(tmp_path, model_copy, small_corpus):
    source, _, *valid = map(str, text_files(small_corpus))
    plan = ActorPlan(
        str(model_copy),
        (source,),
        tuple(valid),
        width=2,
        criterion="log-prob",
        actor={"units": 4},
        recipe=replace(ACTOR_RECIPE, epochs=1),
    )
    progress, reason = train_actor(tmp_path / "run", plan)
    assert reason == "1 epoch"
    assert ActorPlan.load(tmp_path / "run") == plan
    assert resume_actor(tmp_path / "run")[0].update == progress.update
