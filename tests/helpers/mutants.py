"""Mutation testing: make small wrong changes to modules and see whether their tests notice.

`make mutants` tests a seeded sample of the mutants that mutations.py generates, each with the tests
of its module's own area, and prints the survivors and the score. A mutant is tested in a fork of
this process, which has imported torch and pytest but not npad; an import hook gives it the changed
module, so nothing is written below src/. Outcomes are appended to build/mutants.jsonl: an
interrupted run continues where it stopped.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import mutations
from mutant_runs import Running, digest, record_of
from mutants_tables import AREAS
from mutations import Mutant, generate, sample

RECORDS = "build/mutants.jsonl"
PRELOADED = ["torch", "numpy", "pytest", "hypothesis", "hypothesis.extra.numpy", "xdist.plugin"]
PRELOADED += ["_hypothesis_pytestplugin", "safetensors.torch", "tokenizers", "sacrebleu.metrics"]
PRELOADED += ["PIL.Image", "transformers", "starlette.testclient"]
REQUIRED = 0.9  # the share of mutants that must be killed


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
                    durations, limit = self.expected(mutant)
                    if mutant.old and not durations:
                        self.note(record_of(mutant, "survived"))  # no test reaches it
                    else:
                        running.append(Running.start(mutant, durations, limit))
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
        """Return how long each test that reaches a mutant takes, and the limit of processor time.

        What is run when the module is imported may matter to every test.
        """
        if not mutant.old:
            return {}, 900
        durations = dict[str, float]()
        for control in controls(mutant):
            record, file = self.records[control.key], f"tests/{control.tests[0]}"
            lines = record["reached"][mutant.file]
            found = {test for line in mutant.lines for test in lines.get(str(line), [])}
            every = not mutant.lines or bool({"", file} & found)
            durations |= {
                test: taken for test, taken in record["durations"].items() if every or test in found
            }
        return durations, 15 + 3 * math.ceil(sum(durations.values()))


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


def report(bench: Bench, mutants: list[Mutant]) -> dict[str, Any]:
    """Print survivors and scores, and return them."""
    outcomes = {mutant.key: bench.records[mutant.key]["outcome"] for mutant in mutants}
    killed = {key: outcome != "survived" for key, outcome in outcomes.items()}
    for mutant in mutants:
        if not killed[mutant.key]:
            print(f"survived: {mutant}")
    tested, dead = Counter(), Counter()
    for mutant in mutants:
        tested[mutant.file] += 1
        dead[mutant.file] += killed[mutant.key]
    for file in sorted(tested):
        print(f"{dead[file]:4} of {tested[file]:4} killed  {file}")
    share = dead.total() / max(1, tested.total())
    timed_out = sum(outcomes[mutant.key] == "timed out" for mutant in mutants)
    print(
        f"{dead.total()} of {tested.total()} generated mutants killed: {share:.1%}, "
        f"{timed_out} of them because tests took too long"
    )
    return {
        "generated": tested.total(),
        "killed": dead.total(),
        "timed out": timed_out,
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
    parser.add_argument(
        "--file", action="append", help="only this module or folder: search/beam.py, scale/"
    )
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
    files = [file for file in AREAS if not options.file or file.startswith(tuple(options.file))]
    generated = [mutant for file in files for mutant in generate(file)]
    size = len(generated) if options.all else options.sample
    mutants = sample(generated, size, options.seed)
    print(f"{len(mutants)} of {len(generated)} mutants")
    bench = Bench(options.workers, read_records())
    ensure_unchanged_pass(bench, mutants)
    bench.test(mutants)
    content = {"seed": options.seed} | report(bench, mutants)
    if options.json:
        part = options.json.with_suffix(".part")
        part.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n")
        os.replace(part, options.json)
    if content["score"] < REQUIRED:
        raise SystemExit(f"too many survive: {REQUIRED:.0%} must be killed")


if __name__ == "__main__":
    main()
