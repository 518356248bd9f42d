"""The pool: whatever dies or does not fit, nothing is lost, doubled or out of order."""

from __future__ import annotations

import random
import warnings
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cases import one_warning
from npad import InvalidInput
from npad.errors import MemoryWarning, WaitingWarning
from npad.scale.pool import AHEAD, DEATHS, START_DEATHS, Crew, Pool, WorkerError
from npad.scale.ray_cluster import RayCrew, Remote
from npad.scale.units import Failed
from npad.scale.worker import CannotLoad, Died, ModelSpec, NoMemory, Ready
from scale_cases import DECODING, echo


class Fake(Crew):
    """Workers that do nothing, in random order; `fate` decides what happens to each unit."""

    start_seconds = 5.0

    def __init__(self, fate=lambda unit: None, at_start=lambda number: None, seed=0):
        self.fate, self.at_start, self.random = fate, at_start, random.Random(seed)
        self.work: dict[int, object] = {}  # unit of each live worker; "loading" or None
        self.started = 0
        self.most = 0  # units at workers at a time

    def start(self):
        self.started += 1
        self.work[self.started] = "loading"
        return self.started

    def send(self, worker, unit):
        assert self.work[worker] is None
        self.work[worker] = unit
        self.most = max(self.most, sum(work is not None for work in self.work.values()))

    def wait(self, workers, seconds):
        assert set(workers) == set(self.work)
        able = [worker for worker in workers if self.work[worker] is not None]
        events = []
        for worker in self.random.sample(able, self.random.randint(1, len(able))):
            unit, self.work[worker] = self.work[worker], None
            if unit == "loading":
                events.append((worker, self.at_start(worker) or Ready(worker, "here")))
            else:
                events.append((worker, self.fate(unit) or echo(unit)))
        return events

    def is_starting(self, worker):
        return False

    def stop(self, worker):
        del self.work[worker]

    def close(self):
        assert not self.work


def texts(results):
    return [outcome.text for result in results for outcome in result.outcomes]


@given(st.integers(0, 40), st.integers(1, 5), st.integers(1, 6), st.integers(0, 10**6))
def test_whatever_dies_results_are_whole_and_in_order(count, size, workers, seed):
    chance = random.Random(seed)

    def fate(unit):
        fortune = chance.random()
        if fortune < 0.3:
            return Died("exit code -9")
        return NoMemory("too big") if fortune < 0.4 and len(unit.texts) > 1 else None

    def survivable(unit):  # a unit of one text must not meet three deaths in a row
        return None if len(unit.texts) == 1 else fate(unit)

    def at_start(number):
        return Died("exit code -9") if chance.random() < 0.2 and number % 3 else None

    crew = Fake(survivable, at_start, seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MemoryWarning)
        with Pool(crew, workers) as pool:
            results = list(pool.run(map(str, range(count)), DECODING, size))
    assert texts(results) == [f"{i} 0" for i in range(count)]
    assert [result.first for result in results] == list(range(0, count, size))
    assert crew.most <= workers


def test_units_in_flight_are_bounded():
    read = []

    def source():
        for i in range(1000):
            read.append(i)
            yield str(i)

    slow = {"left": 200}

    def fate(unit):  # the first unit is lost again and again, so that all wait for it
        if unit.first == 0 and slow["left"] > 0 and len(unit.texts) > 1:
            slow["left"] -= 1
            return Died("slow")
        return None

    with Pool(Fake(fate), 3) as pool:
        results = pool.run(source(), DECODING, 5)
        next(results)
        assert len(read) <= (AHEAD * 3 + 1) * 5
        assert len(texts(results)) == 995


def test_a_unit_that_kills_its_workers_is_halved_down_to_the_text_that_does_it():
    lost = []

    def fate(unit):
        if "7" in unit.texts:
            lost.append(len(unit.texts))
            return Died("exit code -11")
        return None

    with Pool(Fake(fate), 2) as pool:
        results = list(pool.run(map(str, range(10)), DECODING, 10))
    (result,) = results
    assert result.outcomes[7] == Failed(f"{DEATHS} workers died on it (exit code -11)")
    survivors = [o.text for o in result.outcomes if not isinstance(o, Failed)]
    assert survivors == [f"{i} 0" for i in range(10) if i != 7]
    assert sorted(set(lost)) == [1, 3, 5, 10]
    assert len(lost) == DEATHS * 4


def test_without_memory_units_are_halved_with_one_warning_and_then_fail():
    def fate(unit):
        big = len(unit.texts) > 2 or "big" in unit.texts
        return NoMemory("3 GiB are missing") if big else None

    with one_warning(), Pool(Fake(fate), 2) as pool:
        results = list(pool.run(["a", "b", "big", "c", "d"], DECODING, 5))
    outcomes = results[0].outcomes
    assert outcomes[2] == Failed("3 GiB are missing")
    assert [o.text for o in outcomes if not isinstance(o, Failed)] == ["a 0", "b 0", "c 0", "d 0"]


def test_a_unit_that_a_worker_halved_itself_is_one_warning():
    with (
        Pool(Fake(lambda unit: replace(echo(unit), halved=True)), 2) as pool,
        one_warning(),
    ):
        assert texts(pool.run(map(str, range(4)), DECODING, 2)) == [f"{n} 0" for n in range(4)]


def test_a_worker_that_ran_out_of_memory_is_replaced():
    full: set[int] = set()

    class Filling(Fake):  # a worker that has run a unit has no memory for another
        def wait(self, workers, seconds):
            events = super().wait(workers, seconds)
            for i, (worker, event) in enumerate(events):
                if worker in full and not isinstance(event, Ready):
                    events[i] = worker, NoMemory("full")
                elif not isinstance(event, Ready):
                    full.add(worker)
            return events

    with one_warning(), Pool(Filling(), 1) as pool:
        assert texts(pool.run("abcdef", DECODING, 1)) == [f"{text} 0" for text in "abcdef"]


def test_a_model_that_cannot_be_loaded_is_one_line():
    crew = Fake(at_start=lambda worker: CannotLoad("there is no model nowhere (on host)"))
    with Pool(crew, 2) as pool, pytest.raises(InvalidInput, match="cannot load the model: there"):
        list(pool.run(["a"], DECODING, 1))
    assert not crew.work


def test_workers_that_all_die_at_the_start_are_not_started_for_ever():
    crew = Fake(at_start=lambda worker: Died("exit code -9"))
    with Pool(crew, 2) as pool, pytest.raises(WorkerError, match="use fewer workers"):
        pool.start()
    assert crew.started <= START_DEATHS + 2


def test_a_cluster_without_room_is_not_waited_for_for_ever():
    class Full(Fake):
        start_seconds = 0.01

        def wait(self, workers, seconds):
            return []

    with Pool(Full(), 2) as pool, pytest.raises(WorkerError, match="--gpus-per-worker"):
        list(pool.run(["a"], DECODING, 1))


def test_a_worker_that_is_being_started_is_waited_for(monkeypatch):
    """Slow is not dead: with one message per `start_seconds`."""
    clock = iter(range(10**6))
    monkeypatch.setattr("npad.scale.pool.time.monotonic", lambda: float(next(clock)))

    class Slow(Fake):
        start_seconds = 10.0
        looks = 0

        def wait(self, workers, seconds):
            self.looks += 1
            return super().wait(workers, seconds) if self.looks > 35 else []

        def is_starting(self, worker):
            assert self.work[worker] == "loading"
            return worker == 2

    with Pool(Slow(), 2) as pool, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        pool.start()
        assert texts(pool.run(["a"], DECODING, 1)) == ["a 0"]
    assert [str(warning.message) for warning in caught] == [
        f"no worker is ready after {seconds} s; one is being started: waiting for it"
        for seconds in (10, 20, 30)
    ]
    assert {warning.category for warning in caught} == {WaitingWarning}


def test_patience_begins_anew_when_all_workers_are_lost(monkeypatch):
    clock = iter(range(10**6))
    monkeypatch.setattr("npad.scale.pool.time.monotonic", lambda: float(next(clock)))

    class Slow(Fake):
        start_seconds = 10.0
        looks = 0

        def wait(self, workers, seconds):
            self.looks += 1
            if self.looks < 15 or self.work.get(2) == "loading":
                return []
            return super().wait(workers, seconds)

        def is_starting(self, worker):
            return worker == 1

    crew = Slow(lambda unit: Died("exit code -9"))
    with Pool(crew, 1) as pool:
        with pytest.warns(WaitingWarning):
            pool.start()
        with pytest.raises(WorkerError, match="no worker started within 10 s"):
            list(pool.run(["a"], DECODING, 1))
    assert crew.looks <= 15 + 1 + 11  # of the first worker, its unit, and the second worker


@pytest.mark.parametrize(
    ("pid", "here", "total", "available", "gpus", "starting"),
    [
        (7, False, {}, {}, 1.0, True),  # it has a process
        (0, True, {"CPU": 2.0}, {}, 0.0, True),  # there is room: its process is being started
        (0, True, {"CPU": 1.0}, {"CPU": 2.0}, 0.0, False),  # two CPUs are needed
        (0, True, {"CPU": 2.0}, {}, 0.5, False),
        (0, True, {"CPU": 2.0, "GPU": 0.5}, {}, 0.5, True),
        (0, False, {"CPU": 8.0}, {"CPU": 1.0}, 0.0, False),  # of a cluster that others use
        (0, False, {"CPU": 8.0}, {"CPU": 2.0}, 0.0, True),
        (None, True, {"CPU": 2.0}, {}, 0.0, True),  # Ray does not say
        (None, True, {}, {}, 0.0, False),
    ],
)
def test_ray_starts_what_has_a_process_or_room(pid, here, total, available, gpus, starting):
    def actors(name):
        assert name == "abc"
        return {"State": "PENDING_CREATION", "Pid": pid}

    crew: Any = RayCrew.__new__(RayCrew)
    crew.spec, crew.gpus, crew.resources, crew.started_here = (
        ModelSpec("toy", threads=2),
        gpus,
        total,
        here,
    )
    private = SimpleNamespace(state=SimpleNamespace(actors=actors))
    crew.ray = SimpleNamespace(available_resources=lambda: available)
    if pid is not None:
        crew.ray._private = private
    actor = SimpleNamespace(_actor_id=SimpleNamespace(hex=lambda: "abc"))
    assert crew.is_starting(Remote(actor, None)) is starting


def test_a_long_run_may_lose_all_its_workers(monkeypatch):
    """The time that a worker may take to start counts from the loss, not from the beginning."""
    clock = iter(range(0, 10**6, 100))
    monkeypatch.setattr("npad.scale.pool.time.monotonic", lambda: float(next(clock)))
    left = iter([Died("exit code -9")] * 2)
    with Pool(Fake(lambda unit: next(left, None) if unit.first > 10 else None), 1) as pool:
        assert len(texts(pool.run(map(str, range(20)), DECODING, 1))) == 20
    assert pool.deaths == 2


def test_an_idle_worker_that_dies_is_replaced():
    class Frail(Fake):
        """The first worker without work dies."""

        killed = 0

        def wait(self, workers, seconds):
            idle = [worker for worker in workers if self.work[worker] is None]
            if idle and not self.killed:
                self.killed = idle[0]
                return [(idle[0], Died("exit code -9"))]
            return super().wait(workers, seconds)

    crew = Frail()
    with Pool(crew, 3) as pool:
        pool.start()
        assert texts(pool.run(map(str, range(9)), DECODING, 4)) == [f"{i} 0" for i in range(9)]
        assert pool.deaths == 1
        assert crew.killed not in {*pool.idle, *pool.busy, *pool.starting, *pool.ready}


def test_a_pool_goes_on_after_a_map_that_was_abandoned():
    crew = Fake()
    with Pool(crew, 3) as pool:
        results = pool.run(map(str, range(50)), DECODING, 2)
        next(results)
        results.close()  # type: ignore[attr-defined]
        assert texts(pool.run(["a", "b", "c"], DECODING, 1)) == ["a 0", "b 0", "c 0"]
        assert texts(pool.map(iter(()))) == []
    assert not crew.work
