"""Shared by the tests of real workers: a corpus, what becomes of it, and drivers to kill."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from npad import NPAD, Greedy, Noise
from npad.scale import Failed, Local, ModelSpec, Task, chains
from npad.scale.pool import Pool
from npad.scale.units import units_of

SPEC = ModelSpec("en-de", "cpu", threads=1)
DECODER = NPAD(Greedy(), chains=4, noise=Noise(0.3))
TASK = Task.of(DECODER)
WORDS = ["I", "you", "Tom", "Mary", "wants", "has", "a", "the", "dog", "house", "water", "today"]


def sentences(count: int) -> list[str]:
    """Sentences of pseudo-random words, the same in every process."""
    state, texts = 1, []
    for number in range(count):
        words = []
        for _ in range(3 + number % 5):
            state = state * 6364136223846793005 % 2**64 + 1442695040888963407
            words.append(WORDS[(state >> 33) % len(WORDS)])
        texts.append(" ".join(words) + ".")
    return texts


def translations(engine, texts, size, chain_parts=1):
    """The texts of all outcomes, in order."""
    results = chains.run(engine, texts, TASK, size, chain_parts)
    return [
        outcome.reason if isinstance(outcome, Failed) else outcome.text
        for result in results
        for outcome in result.outcomes
    ]


def expected(texts, size):
    with Local(SPEC) as engine:
        return translations(engine, texts, size)


def kill_ten(pool: Pool, texts, size) -> tuple[list[str], int]:
    """Translate, and kill a busy worker after each of the first results, ten in all."""
    outputs, killed = [], set()
    for result in pool.map(units_of(texts, TASK, size)):
        assert result.first == len(outputs)
        outputs += [o.reason if isinstance(o, Failed) else o.text for o in result.outcomes]
        # A worker that was killed is busy until the pool notices.
        alive = sorted({pool.ready[worker].pid for worker in pool.busy} - killed)
        if len(killed) < 10 and alive:
            os.kill(alive[0], signal.SIGKILL)
            killed.add(alive[0])
    return outputs, len(killed)


def driver(source: Path, output: Path, *options: object) -> list[str]:
    """A command that translates a corpus in small units."""
    command = [sys.executable, "-m", "npad", "translate", "--device", "cpu", "--window", "10"]
    command += ["-d", "npad", "-M", "4", "-i", str(source), "-o", str(output)]
    return [*command, *map(str, options)]


def kill_after(command: list[str], journal: Path, units: int) -> None:
    """Run a driver and kill it −9 once so many units are finished."""
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        deadline = time.monotonic() + 120
        while not (journal.exists() and journal.read_bytes().count(b"\n") > units):
            assert process.poll() is None, "it was done before it could be killed"
            assert time.monotonic() < deadline
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
