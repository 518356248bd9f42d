"""Worker processes: killed, out of memory, without a model; and drivers that are killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from npad import InvalidInput
from npad.scale import ModelSpec, Processes
from npad.scale.processes import available_cpus, default_workers
from npad.scale.units import units_of
from runs import lines, refused_here
from scale_cases import SPEC, TASK, driver, expected, kill_after, kill_ten, sentences, translations


def test_ten_killed_workers_lose_and_double_nothing():
    texts = sentences(96)
    with Processes(SPEC, workers=2) as engine:
        outputs, kills = kill_ten(engine, texts, 3)
    assert kills == engine.deaths == 10
    assert outputs == expected(texts, 3)


def test_sentences_and_chains_may_be_divided_in_any_way():
    texts = sentences(12)
    with Processes(SPEC, workers=2) as engine:
        found = [translations(engine, texts, *division) for division in [(5,), (12,), (2, 4)]]
    assert found == [expected(texts, 12)] * 3


def test_a_killed_driver_continues_where_it_stopped(tmp_path, capsys, monkeypatch):
    source, output = tmp_path / "in", tmp_path / "out"
    texts = sentences(160)
    source.write_text("\n".join(texts) + "\n")
    command = driver(source, output, "--engine", "processes", "--workers", 2)
    kill_after(command, tmp_path / "out.manifest.jsonl", units=4)
    assert not output.exists()
    line = refused_here(capsys, monkeypatch, *command[3:], "--sigma", "0.5")
    assert "was begun with the decoder" in line
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "of 160 lines were finished by an earlier run" in done.stderr
    assert int(done.stderr.split("npad: ")[1].split(" of")[0]) >= 40
    assert lines(output) == expected(texts, 10)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "out"]


def test_workers_end_when_their_driver_is_killed(tmp_path):
    code = (
        "import sys, time\n"
        "from npad.scale import ModelSpec, Processes\n"
        "if __name__ == '__main__':\n"
        "    engine = Processes(ModelSpec('toy', 'cpu'), 1)\n"
        "    engine.start()\n"
        "    print(*(ready.pid for ready in engine.ready.values()), flush=True)\n"
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


def test_two_drivers_on_one_output_are_refused(tmp_path, capsys, monkeypatch):
    (tmp_path / "in").write_text("\n".join(sentences(20_000)))
    command = driver(tmp_path / "in", tmp_path / "out", "--engine", "local")
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as first:
        while not (tmp_path / "out.manifest.jsonl").exists():
            assert first.poll() is None
            time.sleep(0.02)
        line = refused_here(capsys, monkeypatch, *command[3:])
        first.kill()
    assert "another process is writing" in line
    assert "choose another output" in line


def test_an_interrupt_is_one_line_and_says_how_to_continue(tmp_path):
    (tmp_path / "in").write_text("\n".join(sentences(20_000)))
    command = driver(tmp_path / "in", tmp_path / "out", "--engine", "processes", "--workers", 2)
    with subprocess.Popen(
        command,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # a shell's job in the background ignores interrupts, and so would what it starts
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    ) as process:
        journal = tmp_path / "out.manifest.jsonl"
        while not (journal.exists() and journal.read_bytes().count(b"\n") > 1):
            assert process.poll() is None
            time.sleep(0.02)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does, to the workers, too
        err = process.stderr.read()
    assert process.returncode == 130
    (line,) = err.splitlines()
    assert line.startswith("npad: interrupted; ")
    assert line.endswith("texts are finished: the same command continues after them")


def test_a_model_that_no_worker_can_load_is_one_line(tmp_path, capsys, monkeypatch):
    with (
        Processes(ModelSpec(str(tmp_path / "nowhere"), "cpu"), 1) as engine,
        pytest.raises(InvalidInput, match="a worker cannot load the model: there is no model"),
    ):
        engine.start()
    (tmp_path / "in").write_text("danke\n")
    files = ("-i", tmp_path / "in", "-o", tmp_path / "out", "--engine", "processes")
    here = partial(refused_here, capsys, monkeypatch, "translate")
    assert "there is no model" in here("-m", tmp_path / "nowhere", *files)
    line = here("-m", "toy", *files, "--device", "cuda:7", "--workers", 1)
    assert "a worker cannot load the model" in line


def test_a_program_may_run_several_maps():
    with Processes(ModelSpec("toy", "cpu"), 1) as engine:
        for text, answer in [("danke", "thanks"), ("na ja", "well yes")]:
            (result,) = engine.map(units_of([text], TASK, 1))
            assert result.outcomes[0].text == answer


def test_workers_are_as_many_as_cpus_or_gpus(monkeypatch):
    assert default_workers("cpu") == available_cpus()
    monkeypatch.setattr("torch.cuda.device_count", lambda: 3)
    assert [default_workers(device) for device in ("auto", "cuda", "cpu", "cuda:1")] == [
        3,
        3,
        available_cpus(),
        1,
    ]


def test_workers_take_the_gpus_in_turn(monkeypatch):
    from npad.scale.processes import _on_next_gpu

    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    spec = ModelSpec("toy", "auto")
    assert [_on_next_gpu(spec, i).device for i in range(3)] == ["cuda:0", "cuda:1", "cuda:0"]
    assert _on_next_gpu(SPEC, 1).device == "cpu"
