"""After a kill −9 or on a full disk, checkpoints stay sound and a run resumes bit-identically."""

from __future__ import annotations

import time

import pytest

from npad.storage import checkpoint
from npad.training.loop import load_checkpoint
from runs import begun, kill_when, npad, once, pair_options, refused, reversal, weights

RECIPE = "--vocabulary 300 --units 16 --embedding 12 --batch 200"
RECIPE += " --epochs 2 --checkpoint 3 --sigma 0.1 --lr 0.01"


def arguments(folder, text):
    return ["train", folder, *pair_options(text), *RECIPE.split()]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run that nobody disturbed."""

    def make(folder):
        text = reversal(folder / "text", train=250, valid=30)
        npad(*arguments(folder / "run", text))

    return once(tmp_path_factory, "whole", make)


# What is seen in the run's folder before the process is killed, any of it, and how long after that.
MOMENTS = {
    "while preparing": ([".data.part", "data"], 0.0),
    "while saving": ([".checkpoint-[369].part", "checkpoint-12"], 0.0),
    "somewhere": (["checkpoint-9", "checkpoint-12"], 0.02),
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_killed_run_goes_on_to_the_same_weights(tmp_path, whole, moment, printed_here):
    signs, delay = MOMENTS[moment]
    run = tmp_path / "run"

    def reached():
        return any(path for sign in signs for path in run.glob(sign))

    kill_when(reached, *arguments(run, whole / "text"), delay=delay)
    last = checkpoint.newest(run, "checkpoint")
    if last is not None:
        load_checkpoint(last)  # is sound, whatever was going on
    printed_here("train", run, "--resume")
    assert weights(run) == weights(whole / "run")
    assert weights(run, "best") == weights(whole / "run", "best")
    assert not list(run.glob(".*"))  # nothing left over


@pytest.mark.parametrize(("number", "name"), [(2, "interrupted"), (15, "terminated")])
def test_the_command_says_how_an_interrupted_run_goes_on(
    tmp_path, whole, number, name, printed_here
):
    run = tmp_path / "run"
    command = arguments(run, whole / "text")
    command[command.index("--checkpoint") + 1] = "9999"
    with begun(*command) as process:
        while not any(log.stat().st_size for log in run.glob("log.jsonl")):
            time.sleep(0.001)
        process.send_signal(number)
        assert process.wait(60) == 128 + number
        last = checkpoint.newest(run, "checkpoint")
        written, line = f"{last.name} is written", process.stderr.read().decode().splitlines()[-1]
    assert line == f"npad: {name}; {written}; npad train {run} --resume continues"
    printed_here("train", run, "--resume")
    assert weights(run) == weights(whole / "run")
    assert weights(run, "best") == weights(whole / "run", "best")


def test_a_full_disk_leaves_the_last_good_checkpoint(tmp_path, whole, printed_here):
    """A limit on the size of files stands in for the disk: a checkpoint does not fit."""
    run = tmp_path / "run"
    printed_here(*arguments(run, whole / "text"), "--updates", 6)
    before = weights(run)
    line = refused("train", run, "--resume", "--updates", 999, limit="ulimit -f 40", code=1)
    assert "cannot write" in line
    assert "File too large" in line
    assert weights(run) == before
    printed_here("train", run, "--resume", "--updates", 999)
    assert weights(run) == weights(whole / "run")
