"""Helpers of the tests of training: small corpora, tiny models, and `npad` as a process."""

from __future__ import annotations

import io
import os
import runpy
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from filelock import FileLock
from safetensors.torch import load_file

from npad.cli.main import main
from npad.models.cgru.model import AttentionModel
from npad.storage import jsonl
from npad.training import run
from npad.training.loop import Watch
from npad.training.prepare import prepare
from npad.training.recipe import Recipe
from npad.training.store import Store
from npad.training.update import ModelUpdater

ROOT = Path(__file__).parent.parent.parent
TINY = {"units": 8, "embedding": 6, "initialisation": "glorot"}
SHORT = Recipe(batch=120, epochs=3, checkpoint=4, learning_rate=0.01)
SMALL_RUN = [*["--vocabulary", "400", "--units", "64", "--embedding", "48", "--dropout", "0"]]
SMALL_RUN += [*["--batch", "512", "--lr", "3e-3", "--decay", "0.5", "--epochs", "12"]]


def reversal(folder: Path, **sizes: int) -> Path:
    """The corpus of examples/reversal.py, or the first lines of it."""
    runpy.run_path(str(ROOT / "examples/reversal.py"))["main"](folder)
    for split, size in sizes.items():
        for side in ("src", "tgt"):
            path = folder / f"{split}.{side}"
            path.write_text("".join(path.read_text().splitlines(keepends=True)[:size]))
    return folder


def once(factory, name: str, make: Callable[[Path], None]) -> Path:
    """A folder that one of the test processes fills, once, for all of them."""
    folder = (
        factory.getbasetemp().parent / name
        if "PYTEST_XDIST_WORKER" in os.environ
        else factory.mktemp(name)
    )
    with FileLock(f"{folder}.lock"):
        if not (folder / "done").exists():
            folder.mkdir(exist_ok=True)
            make(folder)
            (folder / "done").touch()
    return folder


def small_store(folder: Path, train: int = 120, valid: int = 20):
    """A token store of a few pairs."""
    text = reversal(folder / "text", train=train, valid=valid)
    files = {split: (text / f"{split}.src", text / f"{split}.tgt") for split in ("train", "valid")}
    return prepare(folder / "store", files["train"], files["valid"], vocabulary=(300, 300))


def tiny(store: Store, seed: int = 0, **changes) -> AttentionModel:
    """A tiny model with the vocabulary of a token store."""
    torch.manual_seed(seed)
    source, target = store.subwords
    return AttentionModel(source.size, target.size, **(TINY | changes))


def updater(store: Store, recipe: Recipe = SHORT, **changes) -> ModelUpdater:
    """Updates of a tiny model on a CPU."""
    return ModelUpdater(tiny(store, **changes), store.train, recipe, torch.device("cpu"))


def train(folder: Path, store: Store, recipe: Recipe = SHORT, **options):
    """Train a tiny model in a folder; its progress, and why it stopped."""
    return run.train(folder, store.folder, TINY | options, recipe)


class Enough(Exception):
    pass


class Stopping(Watch):
    """Dies at a report of the second epoch."""

    def report(self, record):
        if record["epoch"] > 1:
            raise Enough


def text_files(folder: Path) -> list[Path]:
    """Sources and targets to train on, then those to validate on."""
    return [folder / f"{split}.{side}" for split in ("train", "valid") for side in ("src", "tgt")]


def pair_options(folder: Path) -> list[object]:
    """The options --train and --valid of a folder of texts."""
    files = text_files(folder)
    return ["--train", *files[:2], "--valid", *files[2:]]


def heed_signals() -> None:
    """Undo the SIG_IGN that a shell gives its background jobs, and their children inherit."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)


def begun(*arguments: object) -> subprocess.Popen:
    """The command as a process that runs."""
    return subprocess.Popen(
        [sys.executable, "-m", "npad", *map(str, arguments)],
        stderr=subprocess.PIPE,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        preexec_fn=heed_signals,
    )


def kill_when(reached: Callable[[], bool], *arguments: object, delay: float = 0.0) -> None:
    """Start the command as a process, and kill it once something has been reached."""
    process = begun(*arguments)
    while process.poll() is None and not reached():
        time.sleep(0.001)
    time.sleep(delay)
    process.kill()
    process.communicate()
    assert process.returncode == -signal.SIGKILL, "it was done before it could be killed"


def log_without_time(folder: Path) -> list[dict]:
    """The records of a run's log, without what no two runs share."""
    slow = ("seconds", "tokens_per_second")
    records = jsonl.read(folder / "log.jsonl")
    return [{name: record[name] for name in record if name not in slow} for record in records]


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines()


def npad(
    *arguments: object, stdin: str | bytes = "", code: int | None = 0, limit: str = "", **rest
):
    """Run the command as a process; `limit` is a shell command before it, such as ulimit."""
    command = [sys.executable, "-m", "npad", *map(str, arguments)]
    if limit:
        command = ["bash", "-c", f'{limit}; exec "$@"', "bash", *command]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "COLUMNS": "100"} | rest.pop("env", {})
    stdin = stdin.encode() if isinstance(stdin, str) else stdin
    done = subprocess.run(
        command, input=stdin, capture_output=True, env=environment, timeout=300, **rest
    )
    done.stdout, done.stderr = done.stdout.decode(), done.stderr.decode()
    assert code is None or done.returncode == code, done.stderr
    return done


def refused(*arguments: object, code: int = 2, **rest) -> str:
    """The one line that a mistake gets."""
    return _one_line(npad(*arguments, code=code, **rest).stderr)


def run_here(
    capsys, monkeypatch, *arguments: object, stdin: str = "", code: int = 0, columns: int = 100
):
    """Run the command in this process, which starts at once; the same result as that of `npad`."""
    monkeypatch.setattr(
        sys, "stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO(stdin.encode())))
    )
    monkeypatch.setenv("COLUMNS", str(columns))
    left = _exit_code(monkeypatch, arguments)
    out, err = capsys.readouterr()
    assert left == code, err
    return SimpleNamespace(stdout=out, stderr=err)


def printed_here(capsys, monkeypatch, *arguments: object) -> str:
    """What the command printed, run in this process."""
    return run_here(capsys, monkeypatch, *arguments).stdout


def refused_here(capsys, monkeypatch, *arguments: object, code: int = 2) -> str:
    """The one line that a mistake gets, run in this process."""
    left = _exit_code(monkeypatch, arguments)
    out, err = capsys.readouterr()
    assert (left, out) == (code, ""), err
    return _one_line(err)


def _exit_code(monkeypatch, arguments: tuple[object, ...]) -> object:
    monkeypatch.setattr(sys, "argv", ["npad", *map(str, arguments)])
    with pytest.raises(SystemExit) as stopped:
        main()
    return stopped.value.code


def _one_line(err: str) -> str:
    *before, last = err.strip().splitlines()
    assert all("perplexity" in line for line in before)  # the progress of training, no more
    assert last.startswith("npad: ")
    return last.removeprefix("npad: ")


def weights(folder: Path, kind: str = "checkpoint"):
    """The tensors of a run's last checkpoint, or its best, as bytes."""
    (saved,) = folder.glob(f"{kind}-*")
    files = sorted(saved.glob("*.safetensors"))
    return {
        f"{file.name}/{name}": tensor.numpy().tobytes()
        for file in files
        for name, tensor in load_file(file).items()
    }
