"""Shared by the tests of workers: a corpus, its translation, and drivers to stop and kill."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

from npad import NPAD, Greedy, Hypothesis, Noise, Translation
from npad.scale import Decoding, Failed, Local, ModelSpec, Result, Unit
from npad.scale.pool import Pool

SPEC = ModelSpec("en-de", "cpu", threads=1)
DECODING = Decoding(NPAD(Greedy(), chains=4, noise=Noise(0.3)))
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


def written(outcome) -> str:
    return outcome.reason if isinstance(outcome, Failed) else outcome.text


def translations(workers, texts, size, chain_parts=1):
    """The texts of all outcomes, in order."""
    results = workers.run(texts, DECODING, size, chain_parts)
    return [written(outcome) for result in results for outcome in result.outcomes]


def expected(texts, size):
    with Local(SPEC) as workers:
        return translations(workers, texts, size)


def made_of(text: str, *others: str) -> Translation:
    """A translation whose alternatives are these."""
    alternatives = tuple(made_of(other) for other in others)
    return Translation(text, -1.0, Hypothesis((), -1.0, True), "", alternatives)


def echo(unit: Unit) -> Result:
    """The result of a unit whose translations name their text and chains."""
    start, stop = unit.chains or (0, 1)
    outcomes = [
        made_of(*(f"{text} {chain}" for chain in range(start, stop))) for text in unit.texts
    ]
    return Result(unit.first, tuple(outcomes), "model", len(unit.texts), 1)


def translate_and_kill(pool: Pool, texts, size, kills) -> list[str]:
    """Translate, and kill a busy worker after each of the first results."""
    outputs, killed = [], set()
    for result in pool.run(texts, DECODING, size):
        assert result.first == len(outputs)
        outputs += map(written, result.outcomes)
        # A worker that was killed is busy until the pool notices.
        alive = sorted({pool.ready[worker].pid for worker in pool.busy} - killed)
        if len(killed) < kills and alive:
            os.kill(alive[0], signal.SIGKILL)
            killed.add(alive[0])
    assert len(killed) == kills
    return outputs


def driver(source: Path, output: Path, *options: object) -> list[str]:
    """A command that translates a corpus in small units."""
    command = [sys.executable, "-m", "npad", "translate", "--device", "cpu", "--window", "10"]
    command += ["-d", "npad", "-M", "4", "-i", str(source), "-o", str(output)]
    return [*command, *map(str, options)]


@contextmanager
def stopped_after(command: list[str], journal: Path, units: int):
    """Run a driver, stop it once so many units are finished, and kill it −9 at the end."""
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        wait_for_units(process, journal, units)
        process.send_signal(signal.SIGSTOP)
        yield
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL


def wait_for_units(process: subprocess.Popen, journal: Path, units: int) -> None:
    deadline = time.monotonic() + 120
    while not (journal.exists() and journal.read_bytes().count(b"\n") > units):
        assert process.poll() is None, "it was done before it could be stopped"
        assert time.monotonic() < deadline
        time.sleep(0.02)
