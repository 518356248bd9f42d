"""Mutation testing: make small wrong changes to central modules and see whether tests notice.

`make mutants` tests the named mutants, which once survived, and a seeded sample of generated ones
(mutations.py), each with the tests of its module's own area, and prints the survivors and the
score. A mutant is tested in a fork of this process, which has imported torch and pytest but not
npad; an import hook gives it the changed module, so nothing is written below src/. Outcomes are
appended to build/mutants.jsonl: an interrupted run continues where it stopped.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import math
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib.machinery import PathFinder, SourceFileLoader
from pathlib import Path
from typing import Any

import mutations
from mutants_tables import AREAS
from mutations import Mutant, generate, named, sample

RECORDS = "build/mutants.jsonl"
PRELOADED = ["torch", "numpy", "pytest", "hypothesis", "hypothesis.extra.numpy", "xdist.plugin"]
PRELOADED += ["_hypothesis_pytestplugin", "safetensors.torch", "tokenizers", "sacrebleu.metrics"]
MEMORY = 16 << 30  # bytes of address space, so that a mutant cannot use up the machine's
REQUIRED = 0.9  # the share of mutants that must be killed


class Hook(SourceFileLoader):
    """An import hook that loads one module from a mutant's tree."""

    def __init__(self, mutant: Mutant) -> None:
        path = mutations.SOURCE / mutant.file
        parts = path.relative_to(mutations.ROOT / "src").with_suffix("").parts
        super().__init__(".".join(parts), str(path))
        self.code = compile(mutant.tree(), str(path), "exec")

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name != self.name:
            return None
        spec = PathFinder.find_spec(name, path)
        assert spec is not None
        spec.loader = self
        return spec

    def get_code(self, name: str) -> Any:
        return self.code


class Watch:
    """A pytest plugin: run short tests first, do not shrink examples, note the first failure."""

    def __init__(self, folder: Path, durations: dict[str, float]) -> None:
        self.folder, self.durations, self.measured = folder, durations, dict[str, float]()

    def pytest_sessionstart(self) -> None:
        from hypothesis import Phase, settings

        settings.register_profile("mutants", settings.default, phases=[Phase.generate])
        settings.load_profile("mutants")

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        files = list(dict.fromkeys(item.path for item in items))
        items.sort(key=lambda item: (files.index(item.path), self.durations.get(item.nodeid, 0)))

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            (self.folder / "by").write_text(report.nodeid)

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            (self.folder / "by").write_text(report.nodeid)
        self.measured[report.nodeid] = self.measured.get(report.nodeid, 0) + report.duration

    def pytest_sessionfinish(self) -> None:
        (self.folder / "durations").write_text(json.dumps(self.measured))


def run_tests(mutant: Mutant, folder: Path, durations: dict[str, float], limit: int) -> int:
    """Run the tests of a mutant's area in this process, which is a fork made for it."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.setsid()  # so that a timeout ends the processes of its tests, too
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))
    log = os.open(folder / "log", os.O_CREAT | os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(log, stream)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.chdir(mutations.ROOT)
    sys.meta_path.insert(0, Hook(mutant))
    import pytest

    tests = [f"tests/{name}" for name in mutant.tests]
    options = ["-x", "-q", "-n", "0", "-p", "no:cacheprovider", "--rootdir=.", "-W"]
    options += ["ignore::pytest.PytestAssertRewriteWarning", f"--basetemp={folder}/tmp"]
    return int(pytest.main([*options, *tests], plugins=[Watch(folder, durations)]))


@dataclass
class Running:
    """A mutant under test."""

    mutant: Mutant
    folder: Path
    pid: int
    deadline: float

    @classmethod
    def start(cls, mutant: Mutant, durations: dict[str, float], limit: int) -> Running:
        """Fork a process that tests the mutant in at most `limit` seconds of processor time."""
        folder = Path(tempfile.mkdtemp(prefix="mutant-"))
        pid = os.fork()
        if pid == 0:
            code = 99
            try:
                code = run_tests(mutant, folder, durations, limit)
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                os._exit(code)
        return cls(mutant, folder, pid, time.monotonic() + 10 * limit)

    def outcome(self) -> dict[str, Any] | None:
        """Return what became of it; None while it runs."""
        done, status, usage = os.wait4(self.pid, os.WNOHANG)
        if not done and time.monotonic() < self.deadline:
            return None
        code = os.waitstatus_to_exitcode(status) if done else -signal.SIGXCPU
        if code in (4, 5, 99):
            raise SystemExit(f"{self.mutant}: the tests did not run\n{self.log()}")
        outcomes = {0: "survived", -signal.SIGXCPU: "timed out", -signal.SIGKILL: "timed out"}
        by = self.folder / "by"
        record = {
            "key": self.mutant.key,
            "outcome": outcomes.get(code, "killed"),
            "by": by.read_text() if by.exists() else "",
            "seconds": round(usage.ru_utime + usage.ru_stime, 1),
        }
        if code == 0 and not self.mutant.old:
            record["durations"] = json.loads((self.folder / "durations").read_text())
        record["digest"] = digest(self.mutant, record["by"])
        self.stop()
        return record

    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")[-3000:]

    def stop(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(self.pid, 0)
        shutil.rmtree(self.folder, ignore_errors=True)


def digest(mutant: Mutant, killed_by: str) -> str:
    """Return a digest of what an outcome rests on: the module, and the tests that decided it."""
    tests = [killed_by.split("::")[0]] if killed_by else [f"tests/{name}" for name in mutant.tests]
    modules = [mutations.SOURCE / mutant.file] if mutant.old else mutations.SOURCE.rglob("*.py")
    paths = [*sorted(modules), *(mutations.ROOT / name for name in tests)]
    return hashlib.sha256(b"\0".join(path.read_bytes() for path in paths)).hexdigest()[:16]


@dataclass
class Bench:
    """Tests mutants, two at a time, and keeps their outcomes."""

    workers: int
    records: dict[str, dict[str, Any]]

    def test(self, mutants: Iterable[Mutant]) -> None:
        """Test those mutants whose outcome is not known yet."""
        waiting = [mutant for mutant in mutants if self.known(mutant) is None]
        total, running = len(waiting), list[Running]()
        waiting.reverse()
        try:
            while waiting or running:
                while waiting and len(running) < self.workers:
                    mutant = waiting.pop()
                    running.append(Running.start(mutant, *self.expected(mutant)))
                time.sleep(0.02)
                for run in list(running):
                    if (record := run.outcome()) is not None:
                        running.remove(run)
                        self.note(record)
                        done = total - len(waiting) - len(running)
                        print(f"{done}/{total} {record['outcome']}: {run.mutant}", flush=True)
        finally:
            for run in running:
                run.stop()

    def known(self, mutant: Mutant) -> dict[str, Any] | None:
        record = self.records.get(mutant.key)
        sound = record is not None and record["digest"] == digest(mutant, record["by"])
        return record if sound else None

    def note(self, record: dict[str, Any]) -> None:
        self.records[record["key"]] = record
        path = mutations.ROOT / RECORDS
        path.parent.mkdir(exist_ok=True)
        with path.open("a") as file:
            file.write(json.dumps(record) + "\n")

    def expected(self, mutant: Mutant) -> tuple[dict[str, float], int]:
        """Return how long each test takes without a change, and the limit of processor time."""
        if not mutant.old:
            return {}, 900
        records = [self.records[control.key] for control in controls(mutant)]
        durations = {
            test: taken for record in records for test, taken in record["durations"].items()
        }
        return durations, 20 + 3 * math.ceil(sum(record["seconds"] for record in records))


def controls(mutant: Mutant) -> list[Mutant]:
    """Return the module as it is, with each test file of the mutant."""
    return [replace(mutant, line=1, old="", new="", tests=(name,)) for name in mutant.tests]


def ensure_unchanged_pass(bench: Bench, mutants: list[Mutant]) -> None:
    """Require that without a change, tests pass through the same mechanism."""
    every = {control.key: control for mutant in mutants for control in controls(mutant)}
    bench.test(every.values())
    for key in every:
        if bench.records[key]["outcome"] != "survived":
            raise SystemExit(f"without a change, a test fails: {bench.records[key]['by']}")


def report(bench: Bench, mutants: list[Mutant], must: list[Mutant]) -> dict[str, Any]:
    """Print survivors and scores, and return them."""
    killed = {m.key: bench.records[m.key]["outcome"] != "survived" for m in [*mutants, *must]}
    survivors = [mutant for mutant in [*must, *mutants] if not killed[mutant.key]]
    for mutant in survivors:
        print(f"survived: {mutant}")
    tested, dead = Counter(), Counter()
    for mutant in mutants:
        tested[mutant.file] += 1
        dead[mutant.file] += killed[mutant.key]
    for file in sorted(tested):
        print(f"{dead[file]:4} of {tested[file]:4} killed  {file}")
    share = dead.total() / max(1, tested.total())
    print(f"{dead.total()} of {tested.total()} generated mutants killed: {share:.1%}")
    print(f"{sum(killed[m.key] for m in must)} of {len(must)} named mutants killed")
    return {
        "named": {mutant.scope: killed[mutant.key] for mutant in must},
        "generated": tested.total(),
        "killed": dead.total(),
        "score": round(share, 4),
        "files": {file: [dead[file], tested[file]] for file in sorted(tested)},
        "survivors": [mutant.key for mutant in mutants if not killed[mutant.key]],
    }


def read_records() -> dict[str, dict[str, Any]]:
    path = mutations.ROOT / RECORDS
    if not path.exists():
        return {}
    lines = [line for line in path.read_text().splitlines(keepends=True) if line[-1] == "\n"]
    return {record["key"]: record for record in map(json.loads, lines)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sample", type=int, default=300, help="how many generated mutants")
    parser.add_argument("--all", action="store_true", help="all generated mutants")
    parser.add_argument("--seed", type=int, default=0, help="another seed is another sample")
    parser.add_argument("--file", action="append", help="only this module, such as search/beam.py")
    parser.add_argument("--workers", type=int, default=2, help="mutants tested at a time")
    parser.add_argument("--fresh", action="store_true", help="forget the outcomes of earlier runs")
    parser.add_argument("--json", type=Path, help="write the score and the survivors here")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped; run it again to continue"))
    if options.fresh:
        (mutations.ROOT / RECORDS).unlink(missing_ok=True)
    os.environ |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(mutations.ROOT / "src")}
    sys.path.insert(0, str(mutations.ROOT / "src"))
    for name in PRELOADED:
        importlib.import_module(name)
    generated = [mutant for file in options.file or AREAS for mutant in generate(file)]
    size = len(generated) if options.all else options.sample
    mutants = sample(generated, size, options.seed)
    must = [mutant for mutant in named() if not options.file or mutant.file in options.file]
    print(f"{len(must)} named mutants and {len(mutants)} of {len(generated)} generated ones")
    bench = Bench(options.workers, read_records())
    ensure_unchanged_pass(bench, [*must, *mutants])
    bench.test([*must, *mutants])
    content = {"seed": options.seed} | report(bench, mutants, must)
    if options.json:
        part = options.json.with_suffix(".part")
        part.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n")
        os.replace(part, options.json)
    if content["score"] < REQUIRED or not all(content["named"].values()):
        raise SystemExit(f"too many survive: {REQUIRED:.0%} and all named ones must be killed")


if __name__ == "__main__":
    main()
