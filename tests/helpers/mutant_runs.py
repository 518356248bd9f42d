"""The test of one mutant, in a fork of this process: see mutants.py."""

from __future__ import annotations

import hashlib
import json
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from contextlib import suppress
from dataclasses import dataclass
from importlib.machinery import PathFinder, SourceFileLoader
from pathlib import Path
from typing import Any

import mutations
from mutations import Mutant

TRAINED = "reversal"  # the folder of the fixture `corpus`
MEMORY = 16 << 30  # bytes of address space, so that a mutant cannot use up the machine's


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
    """A pytest plugin: run short tests first, do not shrink examples, note the first failure.

    With a measurement of coverage, it notes the tests that reach each line. A test is named by its
    function; what a fixture reaches counts for all tests of its file.
    """

    def __init__(self, folder: Path, durations: dict[str, float], coverage: Any = None) -> None:
        self.folder, self.durations, self.measured = folder, durations, dict[str, float]()
        self.coverage = coverage

    def pytest_sessionstart(self) -> None:
        from hypothesis import Phase, settings

        settings.register_profile("mutants", settings.default, phases=[Phase.generate])
        settings.load_profile("mutants")

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        items.sort(key=lambda item: self.durations.get(without_case(item.nodeid), 0))

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            (self.folder / "by").write_text(report.nodeid)

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            (self.folder / "by").write_text(report.nodeid)
        test = without_case(report.nodeid)
        self.measured[test] = self.measured.get(test, 0) + report.duration

    def pytest_runtest_setup(self, item: Any) -> None:
        self._switch(item.nodeid.partition("::")[0])

    def pytest_runtest_call(self, item: Any) -> None:
        self._switch(without_case(item.nodeid))

    pytest_runtest_teardown = pytest_runtest_setup

    def _switch(self, context: str) -> None:
        if self.coverage is not None:
            self.coverage.switch_context(context)

    def pytest_sessionfinish(self) -> None:
        (self.folder / "durations").write_text(json.dumps(self.measured))


def without_case(test: str) -> str:
    """Return the name of a test function without the case that it is run for."""
    return test.partition("[")[0]


def run_tests(mutant: Mutant, folder: Path, durations: dict[str, float], limit: int) -> int:
    """Run tests of a mutant's area in this process, which is a fork made for it."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.setsid()  # so that a timeout also ends the processes of its tests
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))
    log = os.open(folder / "log", os.O_CREAT | os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(log, stream)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.chdir(mutations.ROOT)
    sys.meta_path.insert(0, Hook(mutant))
    import coverage
    import pytest

    os.environ["PYTEST_XDIST_WORKER"] = "of its own"  # so that `runs.once` fills folder / name
    if mutant.old and kept_model().exists():
        shutil.copytree(kept_model(), folder / TRAINED)
    options = ["-x", "-q", "-n", "0", "-p", "no:cacheprovider", "--rootdir=.", "-W"]
    options += ["ignore::pytest.PytestAssertRewriteWarning", f"--basetemp={folder}/tmp"]
    if mutant.old:
        return int(pytest.main([*options, *durations], plugins=[Watch(folder, durations)]))
    tests = [f"tests/{name}" for name in mutant.tests]
    modules = modules_of(mutant)
    include = [str(mutations.SOURCE / module) for module in modules]
    measured = coverage.Coverage(data_file=None, config_file=False, include=include)
    measured.start()
    code = int(pytest.main([*options, *tests], plugins=[Watch(folder, {}, measured)]))
    measured.stop()
    data = measured.get_data()
    reached = {
        module: data.contexts_by_lineno(str(mutations.SOURCE / module)) for module in modules
    }
    (folder / "reached").write_text(json.dumps(reached))
    if code == 0 and (folder / TRAINED).exists():
        with suppress(OSError):  # another process was faster
            (folder / TRAINED).rename(kept_model())
    return code


def kept_model() -> Path:
    """Return where the model of the fixture `corpus` is kept; to train it takes seconds.

    `npad` trains it as a process of its own, which has no hook, so that it is that of no mutant.
    """
    sources = b"\0".join(path.read_bytes() for path in sorted(mutations.SOURCE.rglob("*.py")))
    return mutations.ROOT / f"build/trained-{hashlib.sha256(sources).hexdigest()[:16]}"


def modules_of(control: Mutant) -> list[str]:
    """Return the modules whose lines the tests of an unchanged module are measured on."""
    return [f for f, names in mutations.AREAS.items() if set(control.tests) <= set(names)]


@dataclass
class Running:
    """A mutant under test."""

    mutant: Mutant
    folder: Path
    pid: int
    deadline: float

    @classmethod
    def start(cls, mutant: Mutant, durations: dict[str, float], limit: int) -> Running:
        """Fork a process that tests the mutant in at most `limit` seconds of processor time.

        durations: of the tests to run; a module as it is runs all tests of its file.
        """
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
        return cls(mutant, folder, pid, time.monotonic() + 3 * limit)

    def outcome(self) -> dict[str, Any] | None:
        """Return what became of it; None while it runs."""
        done, status, usage = os.wait4(self.pid, os.WNOHANG)
        if not done and time.monotonic() < self.deadline:
            return None
        code = os.waitstatus_to_exitcode(status) if done else -signal.SIGXCPU
        by = self.folder / "by"
        if code == 5 and not self.mutant.old:
            code = 0  # a whole file is skipped: a library that it needs is not installed
        if code in (4, 5, 99) and not by.exists():  # a file that cannot be imported is a failure
            raise SystemExit(f"{self.mutant}: the tests did not run\n{self.log()}")
        outcomes = {0: "survived", -signal.SIGXCPU: "timed out", -signal.SIGKILL: "timed out"}
        seconds = round(usage.ru_utime + usage.ru_stime, 1)
        killed_by = by.read_text() if by.exists() else ""
        record = record_of(self.mutant, outcomes.get(code, "killed"), killed_by, seconds)
        if code == 0 and not self.mutant.old:
            for name in ("durations", "reached"):
                record[name] = json.loads((self.folder / name).read_text())
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


def record_of(mutant: Mutant, outcome: str, by: str = "", seconds: float = 0) -> dict[str, Any]:
    """Return the record of an outcome; by: the test that failed."""
    return {
        "key": mutant.key,
        "outcome": outcome,
        "by": by,
        "seconds": seconds,
        "digest": digest(mutant, by),
    }


def digest(mutant: Mutant, killed_by: str) -> str:
    """Return a digest of what an outcome rests on: the module, and the tests that decided it.

    What an unchanged module reaches is of the modules that the table gives its tests.
    """
    tests = [killed_by.split("::")[0]] if killed_by else [f"tests/{name}" for name in mutant.tests]
    modules = [mutations.SOURCE / mutant.file] if mutant.old else mutations.SOURCE.rglob("*.py")
    paths = [*sorted(modules), *(mutations.ROOT / name for name in tests)]
    content = [path.read_bytes() for path in paths]
    content += [] if mutant.old else [name.encode() for name in modules_of(mutant)]
    return hashlib.sha256(b"\0".join(content)).hexdigest()[:16]
