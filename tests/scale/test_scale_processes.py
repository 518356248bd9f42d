"""Worker processes: killed, out of memory, without a model; and drivers that are killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from npad import Greedy, InvalidInput
from npad.scale import Decoding, ModelSpec, Processes
from npad.scale.processes import (
    Process,
    ProcessCrew,
    _interrupts_ignored,
    _receive,
    available_cpus,
    default_workers,
    on_next_gpu,
    serve,
)
from npad.scale.units import units_of
from npad.scale.worker import CannotLoad, Died, Ready
from runs import lines
from scale_cases import (
    SPEC,
    driver,
    expected,
    sentences,
    stopped_after,
    translate_and_kill,
    translations,
    wait_for_units,
    written,
)


@pytest.fixture(scope="module")
def pool():
    with Processes(SPEC, workers=2) as pool:
        yield pool


def test_any_division_of_sentences_and_chains_gives_the_same_translations(pool):
    texts = sentences(12)
    found = [translations(pool, texts, *division) for division in [(5,), (12,), (2, 4)]]
    assert found == [expected(texts, 12)] * 3


def test_killed_workers_lose_and_double_nothing(pool):
    texts = sentences(48)
    assert translate_and_kill(pool, texts, 3, kills=3) == expected(texts, 3)
    assert pool.deaths == 3


def test_a_killed_driver_continues_where_it_stopped(tmp_path, refused_here, npad_here):
    source, output = tmp_path / "in", tmp_path / "out"
    texts = sentences(100)
    source.write_text("\n".join(texts) + "\n")
    command = driver(source, output, "--engine", "local")
    with stopped_after(command, tmp_path / "out.manifest.jsonl", units=4):
        line = refused_here(*command[3:])
        assert "another process is writing" in line
        assert "choose another output" in line
    assert not output.exists()
    line = refused_here(*command[3:], "--sigma", "0.5")
    assert "was begun with the decoder" in line
    done = npad_here(*command[3:]).stderr
    assert "of 100 lines were finished by an earlier run" in done
    assert int(done.split("npad: ")[1].split(" of")[0]) >= 40
    assert lines(output) == expected(texts, 10)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "out"]


def test_workers_end_when_their_driver_is_killed(tmp_path):
    code = (
        "import sys, time\n"
        "from npad.scale import ModelSpec, Processes\n"
        "if __name__ == '__main__':\n"
        "    pool = Processes(ModelSpec('toy', 'cpu'), 1)\n"
        "    pool.start()\n"
        "    print(*(ready.pid for ready in pool.ready.values()), flush=True)\n"
        "    time.sleep(60)\n"
    )
    (tmp_path / "program.py").write_text(code)
    with subprocess.Popen(
        [sys.executable, tmp_path / "program.py"], stdout=subprocess.PIPE, text=True
    ) as process:
        pid = int(process.stdout.readline())
        process.kill()
    deadline = time.monotonic() + 20
    while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not Path(f"/proc/{pid}").exists()


def test_an_interrupt_is_one_line_and_says_how_to_continue(tmp_path):
    (tmp_path / "in").write_text("danke\n" * 200_000)
    command = driver(tmp_path / "in", tmp_path / "out", "-m", "toy", "--workers", 1)
    with subprocess.Popen(
        [*command, "--engine", "processes"],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # a shell's job in the background ignores interrupts, and so would what it starts
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    ) as process:
        wait_for_units(process, tmp_path / "out.manifest.jsonl", 1)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does, to the workers as well
        err = process.stderr.read()
    assert process.returncode == 130
    (line,) = err.splitlines()
    assert line.startswith("npad: interrupted; ")
    assert line.endswith("texts are finished: the same command continues after them")


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        (["-m", "nowhere"], "there is no model"),
        (["-m", "toy", "--device", "cuda:7"], "a worker cannot load the model"),
    ],
    ids=["folder", "device"],
)
def test_a_model_that_no_worker_can_load_is_one_line(options, rule, tmp_path, refused_here):
    (tmp_path / "in").write_text("danke\n")
    files = ("-i", tmp_path / "in", "-o", tmp_path / "out", "--engine", "processes", "--workers", 1)
    assert rule in refused_here("translate", *options, *files)


def test_default_workers_are_one_per_gpu_or_cpu_and_take_the_gpus_in_turn(monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 3)
    devices = ("auto", "cuda", "cpu", "cuda:1")
    assert [default_workers(device) for device in devices] == [3, 3, available_cpus(), 1]

    spec = ModelSpec("toy", "auto")
    assert [on_next_gpu(spec, i).device for i in range(4)] == [
        "cuda:0",
        "cuda:1",
        "cuda:2",
        "cuda:0",
    ]
    assert on_next_gpu(SPEC, 1).device == "cpu"
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    assert on_next_gpu(spec, 1) == spec


class Driver:
    """The driver's end of a pipe, which ends after some units."""

    def __init__(self, *units):
        self.units, self.received = list(units), []

    def send(self, event):
        self.received.append(event)

    def recv(self):
        if not self.units:
            raise EOFError
        return self.units.pop(0)


def test_a_worker_runs_units_until_its_driver_is_gone(monkeypatch):
    handled = []
    monkeypatch.setattr(signal, "signal", lambda *given: handled.append(given))
    units = units_of(["danke", "na ja"], Decoding(Greedy()), 1)
    driver, without_model = Driver(*units), Driver(None)
    serve(driver, ModelSpec("toy", "cpu", threads=torch.get_num_threads()))
    serve(without_model, ModelSpec("nowhere", "cpu", threads=torch.get_num_threads()))
    ready, *results = driver.received
    assert isinstance(ready, Ready)
    assert [written(result.outcomes[0]) for result in results] == ["thanks", "well yes"]
    (event,) = without_model.received
    assert isinstance(event, CannotLoad)
    assert handled == [(signal.SIGINT, signal.SIG_IGN)] * 2


def test_a_process_is_starting_while_it_lives(monkeypatch):
    for alive in (True, False):
        process = SimpleNamespace(is_alive=lambda alive=alive: alive)
        assert ProcessCrew(SPEC).is_starting(SimpleNamespace(process=process)) is alive
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    for count, expected_count in ((None, 1), (3, 3)):
        monkeypatch.setattr(os, "cpu_count", lambda count=count: count)
        assert available_cpus() == expected_count


@pytest.mark.parametrize(("code", "reason"), [(None, "its pipe ended"), (3, "exit code 3")])
def test_a_dead_worker_is_told_by_its_exit_code(code, reason):
    process = SimpleNamespace(join=lambda seconds: None, exitcode=code)
    assert _receive(Process(process, Driver())) == Died(reason)


@pytest.mark.parametrize(("workers", "threads"), [(1, 5), (2, 2), (3, 1), (9, 1)])
def test_workers_share_the_cpus(monkeypatch, workers, threads):
    monkeypatch.setattr("npad.scale.processes.available_cpus", lambda: 5)
    spec = ModelSpec("toy", "cpu")
    for given, used in ((None, threads), (3, 3)):
        crew: Any = Processes(replace(spec, threads=given), workers).crew
        assert crew.spec == replace(spec, threads=used)
    assert Processes(spec).count == 5
    with pytest.raises(InvalidInput, match="workers must be a whole number of at least 1, not 0"):
        Processes(spec, 0)


@pytest.mark.parametrize("handler", [signal.SIG_IGN, signal.default_int_handler, None])
def test_the_handler_of_interrupts_is_put_back(monkeypatch, handler):
    """None is one that was not set by Python."""
    called = []
    monkeypatch.setattr(signal, "signal", lambda *given: called.append(given) or handler)
    with _interrupts_ignored():
        pass
    before = signal.SIG_DFL if handler is None else handler
    assert called == [(signal.SIGINT, signal.SIG_IGN), (signal.SIGINT, before)]
