"""Every mistake, failure and interrupt of a command prints one line and sets the exit code."""

from __future__ import annotations

import json
import shlex
import shutil
import signal
import subprocess
import sys
import time
from functools import partial
from typing import Any

import pytest
import torch

from npad.cli.main import main
from npad.engine.devices import PRECISIONS
from runs import heed_signals, lines, npad


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("tranlate", "No such command 'tranlate'"),
        ("translate -m toy hallo", "toy has no table for 'hallo'; it has 'das ist mir wurst'"),
        ("translate --model nowhere danke", "there is no model nowhere"),
        ("translate --width 0 danke", "width must be a whole number of at least 1, not 0"),
        ("translate -d npad --width 5 danke", "--width does not go with --inner greedy"),
        (
            "translate -d fallback --temperatures 0.2,hot danke",
            "--temperatures must be numbers separated by commas, not '0.2,hot'",
        ),
        ("prepare store a b --longest 0", "--longest must be a whole number of at least 1, not 0"),
        ("translate --input nowhere danke", "or one file with --input, not both"),
        ("translate --input nowhere", "cannot read nowhere: No such file or directory"),
        ("translate --json --moses danke", "choose one of --json and --moses"),
        ("translate -d npad --distribution dropout danke", "--distribution dropout is a share"),
        (["translate", "d\udcffnke"], "holds half a surrogate pair"),
        ("translate --output . danke", "it is a folder"),
        (["translate", "-m", "toy", "--output", "n" * 256, "danke"], "File name too long"),
        (["translate", "-m", "toy", "--input", "n" * 256], "File name too long"),
        (["info", "n" * 256], "File name too long"),
        ("compare ' '", "the text is blank"),
        ("compare --pseudo-references greedy danke", "--pseudo-references does not go with the"),
        ("translate -m toy -d 'beam(width=3' danke", "'beam(width=3'; its bracket is not closed"),
        ("translate -m toy -d 'beam(width=3,width=4)' danke", "beam has its field 'width' twice"),
        ("train run --resume --preset paper", "--preset is fixed for a run and cannot change"),
        ("score - -", "cannot both be standard input"),
        ("train run", "training needs --data STORE, or --train SOURCE TARGET"),
        ("train run --train a b", "training needs validation pairs"),
        ("train run --data s --joint", "--joint does not go with --data"),
        ("train run --data s --schedule constant", "training with noise needs --sigma"),
        ("train run --resume", "run holds no run to resume"),
        ("train run --resume --units 5", "--units is fixed for a run and cannot change"),
        ("prepare s a b --vocabulary many", "--vocabulary must be one or two whole numbers"),
        ("info nowhere", "there is no model nowhere"),
        ("plot attention danke --model toy", "toy cannot be plotted; give en-de"),
        ("plot loss .", "has no training log"),
    ],
    ids=str,
)
def test_a_mistake_gets_one_line_and_code_2(
    tmp_path, refused_here, monkeypatch, arguments, message
):
    monkeypatch.chdir(tmp_path)
    words = shlex.split(arguments) if isinstance(arguments, str) else arguments
    assert message in refused_here(*words)
    assert list(tmp_path.iterdir()) == []


COMPUTING = {
    "translate": ["danke"],
    "compare": ["danke"],
    "score": ["--text", "danke", "thanks"],
    "evaluate": ["test.en", "test.de"],
    "calibrate": ["test.en"],
    "train": ["run", "--train", "test.en", "test.de", "--valid", "test.en", "test.de"],
    "reproduce": ["report", "--data", ".", "--model", "en-de"],
    "transcribe": ["--model", "hf:nowhere", "test.en"],
}
PRECISE = ("translate", "evaluate", "calibrate", "train", "reproduce")


@pytest.fixture
def texts(tmp_path, monkeypatch):
    """A folder to work in, with enough in it for every command."""
    for name in ("test.en", "test.de", "valid.en", "valid.de"):
        (tmp_path / name).write_text("danke\n")
    monkeypatch.chdir(tmp_path)
    yield
    left = sorted(path.name for path in tmp_path.iterdir())
    assert left == ["test.de", "test.en", "valid.de", "valid.en"]


def test_control_characters_in_a_name_do_not_reach_the_terminal(tmp_path, refused_here):
    name = "a\x1b[31m\r\u202e\udcff  é\u202fb"
    command = ["translate", "-m", "toy", "-i", tmp_path / name]
    shown = r"a\x1b[31m\r\u202e\udcff  é" + "\u202fb"
    assert f"cannot read {tmp_path}/{shown}: No" in refused_here(*command)


@pytest.mark.parametrize("command", COMPUTING)
@pytest.mark.parametrize("device", ["abacus", "meta", "", "cuda:", "cuda:99", "cuda"])
@pytest.mark.usefixtures("texts")
def test_a_device_that_is_not_there_is_one_line(command, device, refused_here, monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    rule = f"--device must be cpu, cuda or auto, not {device!r}"
    if device in ("cuda", "cuda:99"):
        rule = f"--device {device}: torch can use 0 GPUs on this machine; use another, or cpu"
    arguments = (command, *COMPUTING[command], "--device", device)
    assert refused_here(*arguments) == rule


@pytest.mark.parametrize("command", PRECISE)
@pytest.mark.usefixtures("texts")
def test_a_precision_that_there_is_not_is_one_line(command, refused_here):
    line = refused_here(command, *COMPUTING[command], "--precision", "int4")
    assert line.startswith("precision must be one of 'float32', 'bfloat16'")
    assert ", not 'int4'" in line


@pytest.mark.parametrize("command", [one for one in PRECISE if one != "train"])
@pytest.mark.usefixtures("texts")
def test_a_precision_that_the_device_cannot_do_is_one_line(command, refused_here, monkeypatch):
    monkeypatch.setitem(PRECISIONS, "bfloat16", torch.uint16)  # in which no CPU multiplies
    options = ("--precision", "bfloat16", "--device", "cpu")
    line = refused_here(command, *COMPUTING[command], *options)
    assert line.startswith("cpu cannot compute in bfloat16; use another precision (")


def test_bad_files_are_named_with_their_line(trained, tmp_path, refused_here):
    here = refused_here
    (tmp_path / "bytes").write_bytes(b"fine\nb\xffd\n")
    (tmp_path / "binary").write_bytes(b"\x00\x01")
    base = ("translate", "-m", trained, "-i")
    assert "bytes, line 2: byte 0xff at column 2 is not UTF-8" in here(*base, tmp_path / "bytes")
    assert "binary, line 1: a zero byte" in here(*base, tmp_path / "binary")
    (tmp_path / "a").write_text("one\ntwo\n")
    (tmp_path / "b").write_text("one\n")
    files = (tmp_path / "a", tmp_path / "b")
    assert "a has 2 lines and" in here("prepare", tmp_path / "store", *files)
    assert "b has 1" in here("evaluate", *files, "-m", trained)
    assert "b has 1 line and" in here("score", *files, "-m", trained)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "binary", "bytes"]


def test_a_limit_on_sources_can_be_raised_and_names_its_line(
    trained, tmp_path, refused_here, npad_here
):
    (tmp_path / "a").write_text("babe\n" * 1004 + "babe " * 1100 + "\n")
    (tmp_path / "b").write_text("babe\n" * 1005)
    here = refused_here
    files = (tmp_path / "a", tmp_path / "b", "-m", trained)
    assert "line 1005 has 1,10" in here("score", *files, "-o", tmp_path / "out")
    assert "source 1005 has 1,10" in here("evaluate", *files)
    options = ("-m", trained, "--max-source", 2000, "--max-length", 5, "--json")
    long = npad_here("translate", "babe " * 1100, *options)
    assert json.loads(long.stdout)["log_prob"] < 0


@pytest.mark.parametrize(
    ("redirect", "message"),
    [
        ("exec <&-", "standard input: it is closed"),
        ("exec >&-", "output is closed"),
        ("exec > /dev/full", "No space left"),
    ],
)
def test_streams_that_fail_are_named(redirect, message):
    texts = [] if "<" in redirect else ["danke"]
    done = npad("translate", "-m", "toy", *texts, limit=redirect, code=None)
    assert done.returncode in (1, 2)
    assert "Traceback" not in done.stderr
    assert message in done.stderr


@pytest.mark.parametrize("delay", [0.05, 0.2, 0.6, 1.2, 2.4])
def test_an_interrupt_is_one_line_at_any_time(delay):
    """From the first line of npad on; the interpreter's own start is beyond it."""
    code = (
        "import sys; sys.argv = 'npad translate -m toy'.split(); "
        "from npad.cli import startup; startup.begin(); print('begun', flush=True); "
        "from npad.cli.main import main; main()"
    )
    pipes: Any = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, **pipes, preexec_fn=heed_signals) as process:
        assert process.stdout.readline() == b"begun\n"
        time.sleep(delay)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
        assert process.stderr.read() == b"npad: interrupted\n"


def test_an_interrupt_names_what_was_written_so_far(tmp_path):
    command = [sys.executable, "-m", "npad", "translate", "-m", "toy", "--window", "1"]
    command += ["-o", str(tmp_path / "out")]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stderr=pipe, preexec_fn=heed_signals) as process:
        process.stdin.write(b"danke\n")
        process.stdin.flush()
        while not any(path.stat().st_size for path in tmp_path.iterdir()):
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
        (part,) = tmp_path.iterdir()
        line = f"npad: interrupted; what was written so far is in {part}\n"
        assert process.stderr.read().decode() == line
    assert lines(part) == ["thanks"]


class Panic(BaseException):
    """As a library in Rust raises it."""


@pytest.mark.parametrize(
    "error", [TypeError("no\nnumber"), Panic("no\nnumber"), RuntimeError("no\nnumber")]
)
def test_a_bug_is_one_line_and_shows_its_traceback_where_asked(
    error, capsys, monkeypatch, refused_here
):
    def fail(*_):
        raise error

    monkeypatch.setattr("npad.cli.translate.load_as", fail)
    line = refused_here("translate", "danke", code=70)
    report = "please report it with the traceback that NPAD_TRACEBACK=1 shows: "
    assert line.startswith(f"this is a bug in npad, {report}")
    assert line.endswith(f": {type(error).__name__}: no number")
    monkeypatch.setenv("NPAD_TRACEBACK", "1")
    with pytest.raises(SystemExit, match="70"):
        main()
    assert "Traceback" in capsys.readouterr().err


def test_a_damaged_model_or_log_is_named(trained, tmp_path, refused_here):
    (best,) = trained.glob("best-*")
    shutil.copytree(best, tmp_path / "model")
    weights = tmp_path / "model/model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])
    here = partial(refused_here, code=1)
    line = here("translate", "-m", tmp_path / "model", "bade")
    assert "model.safetensors is damaged" in line
    (tmp_path / "log.jsonl").write_text("[" * 100_000 + "\n")
    assert "damaged" in here("plot", "loss", tmp_path)


def test_a_reader_that_leaves_is_no_error():
    done = npad("translate", "-m", "toy", *["danke"] * 5, code=None, limit="exec > >(head -1)")
    assert "Traceback" not in done.stderr
