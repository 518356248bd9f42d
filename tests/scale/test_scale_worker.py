"""A worker: what happens to units that fail, and what is counted."""

from __future__ import annotations

import os
import socket
import warnings
from dataclasses import replace

import pytest

from npad import NPAD, Beam, Greedy, InvalidInput, count_calls
from npad.errors import MemoryWarning, OutOfMemory
from npad.scale import Decoding, Failed, ModelSpec, Result, Unit
from npad.scale.worker import (
    CannotLoad,
    Died,
    NoMemory,
    Ready,
    Worker,
    fingerprint,
    load_worker,
    one_line,
    run_remotely,
    run_unit,
)

SPEC = ModelSpec("toy", "cpu")


def unit(*texts, decoder=None, **more):
    return Unit(3, texts, Decoding(decoder or Greedy()), **more)


@pytest.fixture
def worker():
    return Worker(SPEC)


def raising(worker, error):
    """Let a worker's tokenizer raise an error."""

    def encode(texts):
        raise error

    worker.translator = replace(worker.translator, encode=encode)
    return worker


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (OutOfMemory("3 GiB are missing"), NoMemory("3 GiB are missing")),
        (MemoryError("x"), NoMemory("it does not fit in memory")),
        (RuntimeError("CUDA error: an\nassert"), Died("RuntimeError: CUDA error: an assert")),
    ],
)
def test_an_error_that_ends_a_unit_is_its_outcome(worker, error, outcome):
    assert run_unit(raising(worker, error), unit("danke", "na ja")) == outcome


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (RuntimeError("no CUDA"), "RuntimeError: no CUDA"),
        (ValueError("CUDA error"), "ValueError: CUDA error"),
        (ValueError(" a\n b "), "ValueError: a b"),
        (KeyError(), "KeyError: KeyError"),
        (InvalidInput("a\nb"), "a b"),
    ],
)
def test_an_error_that_is_due_to_a_text_is_its_reason(worker, error, reason):
    assert one_line(error) == reason
    result = run_unit(raising(worker, error), unit("danke", "na ja", Failed("unread")))
    assert result.outcomes == (Failed(reason), Failed(reason), Failed("unread"))


@pytest.mark.filterwarnings("ignore")
def test_a_result_says_whether_memory_was_short(worker, monkeypatch):
    def translate(warned):
        def run(found):
            for category in warned:
                warnings.warn("short", category, stacklevel=1)
            return Result(3, ())

        monkeypatch.setattr(worker, "run", run)
        return run_remotely(worker, unit("danke"))

    assert translate([]).halved is False
    assert translate([DeprecationWarning]).halved is False
    for _ in range(2):  # a warning that was shown before counts as well
        assert translate([DeprecationWarning, MemoryWarning]).halved is True
    monkeypatch.undo()
    assert (
        run_remotely(raising(worker, MemoryError()), unit("a")).reason
        == "it does not fit in memory"
    )


def test_a_worker_that_has_loaded_says_where_it_is(tmp_path):
    worker, loaded = load_worker(SPEC)
    assert loaded == Ready(os.getpid(), socket.gethostname())
    assert worker.run(unit("danke")).outcomes[0].text == "thanks"
    worker, loaded = load_worker(ModelSpec(str(tmp_path / "nowhere"), "cpu"))
    assert worker is None
    assert isinstance(loaded, CannotLoad)
    assert loaded.reason.endswith(f"(on {socket.gethostname()})")


def test_model_calls_are_those_of_the_unit_and_are_counted_once(worker):
    decoder = NPAD(chains=3)
    with count_calls() as alone:
        worker.translator.translate(["danke", "na ja"], decoder)
    with count_calls() as outer:
        result = worker.run(unit("danke", "na ja", decoder=decoder))
    assert (result.calls, result.rescored) == (alone.search, alone.rescoring)
    assert result.calls > 0
    assert result.rescored > 0
    assert outer.search == outer.rescoring == 0
    assert (result.first, result.model) == (3, worker.translator.model.name)


def test_a_unit_returns_the_alternatives_that_are_asked_for(worker):
    decoder = Beam(3, nbest=3)
    (every,) = worker.run(unit("danke", decoder=decoder)).outcomes
    assert len(every.alternatives) > 1
    for kept in (0, 1):
        (outcome,) = worker.run(unit("danke", decoder=decoder, alternatives=kept)).outcomes
        assert outcome.alternatives == every.alternatives[:kept]
    # of a range of chains all candidates come, and near-ties are counted by whoever merges them
    noisy = NPAD(Beam(3, nbest=3), chains=2)
    ranged = worker.run(unit("danke", decoder=noisy, alternatives=0, chains=(0, 2)))
    assert len(ranged.outcomes[0].alternatives) > 1
    assert ranged.near_ties == 0


def test_threads_and_longest_sources_are_those_of_the_specification():
    import torch

    before = torch.get_num_threads()
    try:
        worker = Worker(replace(SPEC, threads=before + 1, max_source=6))
        assert torch.get_num_threads() == before + 1
        Worker(SPEC)
        assert torch.get_num_threads() == before + 1
    finally:
        torch.set_num_threads(before)
    (outcome,) = worker.run(unit("ich verstehe nur bahnhof")).outcomes
    assert "6 tokens are allowed" in outcome.reason


def test_every_candidate_of_a_range_of_chains_has_its_confidence(worker):
    worker.translator = replace(worker.translator, confidence=lambda h: 50 + h.log_prob)
    noisy = NPAD(Beam(3, nbest=3), chains=2)
    (outcome,) = worker.run(unit("danke", decoder=noisy, chains=(0, 2))).outcomes
    assert len(outcome.alternatives) > 1
    for found in (outcome, *outcome.alternatives):
        assert found.confidence == 50 + found.hypothesis.log_prob
        assert found.signal == outcome.signal != ""


def test_every_file_that_decides_an_output_changes_the_fingerprint(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder, foreign = tmp_path / "own", tmp_path / "foreign"
    names = {"own": "own", "hf": "hf:foreign", "chat": "chat:foreign", "python": "my.py:make"}
    for path in (folder / "config.json", foreign / "a/b", tmp_path / "my.py"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("0")
    seen = {name: [fingerprint(model)] for name, model in names.items()}
    for kind, paths in {
        "own": ["config.json", "confidence.json", "actor.json", "actor.json"],
        "foreign": ["a/b", "a/c"],
        ".": ["my.py"],
    }.items():
        for number, path in enumerate(paths, start=1):
            (tmp_path / kind / path).write_text(f"{number}")
            for name, model in names.items():
                seen[name].append(fingerprint(model))
    (folder / "model.safetensors").write_text("its checksum is in config.json")
    assert fingerprint("own") == seen["own"][-1]
    counts = {name: len(set(digests)) for name, digests in seen.items()}
    assert counts == {"own": 5, "hf": 3, "chat": 3, "python": 2}
    assert len({digest for digests in seen.values() for digest in digests}) == 13
    assert fingerprint("my.py:other") != fingerprint("my.py:make")
