"""npad prepare and npad train, as commands."""

from __future__ import annotations

import json

import pytest
import torch

import media
import npad as package
from npad.cli.main import main
from npad.engine.devices import PRECISIONS
from npad.storage import checkpoint
from runs import lines, pair_options, text_files


def test_training_leaves_a_log_and_a_picture(trained):
    records = [json.loads(line) for line in lines(trained / "log.jsonl")]
    fields = "update epoch seconds nll perplexity gradient_norm tokens_per_second"
    assert set(fields.split()) <= set(records[0])
    assert any("valid_perplexity" in record for record in records)
    assert (trained / "loss.png").read_bytes().startswith(b"\x89PNG")


def test_prepare_makes_a_store_that_train_takes(corpus, tmp_path, npad_here):
    files = [*text_files(corpus)[:2], "--valid", *text_files(corpus)[2:]]
    options = ["--vocabulary", "300,280", "--longest", 20]
    done = npad_here("prepare", tmp_path / "store", *files, *options)
    assert "3,000" in done.stdout
    tiny = ("--units", 8, "--embedding", 8, "--updates", 3)
    npad_here("train", tmp_path / "run", "--data", tmp_path / "store", *tiny)
    info = json.loads(npad_here("info", tmp_path / "run", "--json").stdout)
    assert info["model"]["target_vocabulary"] <= 280
    assert info["training"]["update"] == 3
    assert info["training"]["recipe"]["optimiser"] == "adam"


def test_training_in_a_precision_that_the_device_cannot_do_is_one_line(
    corpus, tmp_path, refused_here, monkeypatch
):
    monkeypatch.setitem(PRECISIONS, "bfloat16", torch.uint16)
    options = [*pair_options(corpus), "--device", "cpu", "--precision", "bfloat16"]
    line = refused_here("train", tmp_path / "run", *options)
    assert line.startswith("cpu cannot compute in bfloat16; use another precision (")


def test_an_interrupted_training_says_how_it_continues(tmp_path, refused_here, monkeypatch):
    def interrupted(folder, *_):
        folder.mkdir()
        (folder / "run.json").touch()
        raise KeyboardInterrupt

    monkeypatch.setattr("npad.training.run.train", interrupted)
    run = tmp_path / "run"
    line = refused_here("train", run, "--data", "store", code=130)
    assert line == f"interrupted; npad train {run} --resume continues"


def test_training_options_reach_the_model_and_the_recipe(monkeypatch, tmp_path):
    """Every option of `npad train` is set, and arrives under its own name."""
    received = {}
    monkeypatch.setattr("npad.cli.train._print_summary", lambda *_: None)
    monkeypatch.setattr(
        "npad.training.run.train",
        lambda folder, data, model, recipe, *_: (
            received.update(data=data, model=model, recipe=recipe) or (None, "")
        ),
    )
    model = {"units": 8, "embedding": 6, "cell": "lstm", "layers": 2, "dropout": 0.5}
    model |= {"initialisation": "paper", "attention": True, "tied": True}
    recipe = {"optimiser": "sgd", "learning_rate": 0.5, "decay": 0.9, "clip": 2.0, "batch": 64}
    recipe |= {"epochs": 3, "updates": 7, "patience": 2, "validate": 5, "checkpoint": 6}
    recipe |= {"precision": "float32", "seed": 4, "anneal": False}
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in (model | recipe).items()]
    flags = [flag.removesuffix("=True") for flag in flags if not flag.endswith("=False")]
    noise = [
        "--sigma",
        "0.2",
        "--schedule",
        "power(p=1)",
        "--distribution",
        "laplace",
        "--site",
        "output",
    ]
    monkeypatch.setattr(
        "sys.argv", ["npad", "train", str(tmp_path), "--data", "s", *flags, *noise, "--relative"]
    )
    with pytest.raises(SystemExit, match="0"):
        main()
    assert received["model"] == model
    assert {name: getattr(received["recipe"], name) for name in recipe} == recipe
    assert received["recipe"].noise == package.Noise(
        0.2, package.schedules.Power(1.0), package.distributions.Laplace(), "output", True
    )


def test_a_task_is_trained_from_files_and_a_manifest(tmp_path, printed_here):
    files = media.corpus(tmp_path / "files", "caption", 6, 4)
    pairs = ["--train", *files["train"], "--valid", *files["valid"]]
    tiny = ["--units", "8", "--embedding", "8", "--updates", "3", "--vocabulary", "280"]
    command = ["train", tmp_path / "run", "--task", "caption", *pairs, *tiny, "--size", "16"]
    out = printed_here(*command, "--device", "cpu", "--no-augment")
    assert f"Try it: npad caption --model {tmp_path / 'run'}" in out
    saved = checkpoint.load(tmp_path / "run")
    assert saved.model.options["source_options"]["size"] == 16
    assert saved.about["training"]["recipe"]["augment"] is False


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--task", "video"], "task must be one of 'caption', 'speech', not 'video'"),
        (["--task", "caption", "--joint"], "--joint does not go with --task"),
        (["--task", "caption", "--vocabulary", "300,400"], "--vocabulary must be one number"),
        (["--task", "caption", "--rate", "8000"], "a picture has no feature 'rate'"),
        (["--size", "80"], "--size needs --task caption"),
        (["--rate", "8000"], "--rate needs --task speech"),
        (["--task", "caption", "--from", "x.whl"], "--from is the file of a --network"),
        (["--task", "speech", "--network", "vgg"], "a sound has no feature 'network'"),
    ],
)
def test_a_mistake_in_a_tasks_options_is_one_line(tmp_path, refused_here, options, message):
    files = media.corpus(tmp_path / "files", "caption", 2, 2)
    pairs = ["--train", *files["train"], "--valid", *files["valid"]]
    line = refused_here("train", tmp_path / "run", *pairs, *options)
    assert message in line
    assert not (tmp_path / "run").exists()
